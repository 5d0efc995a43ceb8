// Remembers the operation that a pass was handling when an unexpected exception was thrown.
#pragma once
#include <torch/csrc/jit/ir/ir.h>

#include <exception>
#include <string>

namespace pipewright {

// Guards one iteration in the loops of passes. If an exception leaves the scope, keeps the
// operation for the message; of nested scopes, the innermost one's.
class ErrorContext {
 public:
  explicit ErrorContext(const torch::jit::Node* node)
      : node_(node), thrown_(std::uncaught_exceptions()) {}
  ErrorContext(const ErrorContext&) = delete;
  ~ErrorContext() {
    if (std::uncaught_exceptions() > thrown_) Keep();
  }

  // Returns the kept operation, such as `aten::add, submodule "fc", model.py:31`, or "" if there is
  // none, and forgets it.
  static std::string Take();

 private:
  void Keep() const noexcept;

  const torch::jit::Node* node_;
  int thrown_;
};

}  // namespace pipewright
