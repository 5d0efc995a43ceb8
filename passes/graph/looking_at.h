// Remembers which operation an error that nothing foresees was met at.
#pragma once
#include <torch/csrc/jit/ir/ir.h>

#include <exception>
#include <string>

namespace pipewright {

// Stands in the loops of passes. When an exception leaves the scope, the operation is kept for the
// message; of nested scopes, that of the innermost.
class LookingAt {
 public:
  explicit LookingAt(const torch::jit::Node* node)
      : node_(node), thrown_(std::uncaught_exceptions()) {}
  LookingAt(const LookingAt&) = delete;
  ~LookingAt() {
    if (std::uncaught_exceptions() > thrown_) Keep();
  }

  // Returns the operation, such as `aten::add, submodule "fc", model.py:31`, or "", and forgets it.
  static std::string Take();

 private:
  void Keep() const noexcept;

  const torch::jit::Node* node_;
  int thrown_;
};

}  // namespace pipewright
