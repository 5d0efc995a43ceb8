// Makes up arguments by the types of an operator's schema, to call every existing operator.
#pragma once
#include <ATen/core/function_schema.h>
#include <ATen/core/ivalue.h>

#include <functional>
#include <random>
#include <set>
#include <string>

namespace pipewright {

bool HoldsTensors(const c10::TypePtr& type);

// The arguments of one call. All sizes are the same, so that only ranks decide what fits.
class MadeUpArguments {
 public:
  explicit MadeUpArguments(unsigned attempt);
  // Throws std::invalid_argument if no value of that type can be made.
  c10::IValue Of(const c10::FunctionSchema& schema, const c10::Argument& argument);

 private:
  bool Chance(double p) { return std::uniform_real_distribution<>(0, 1)(random_) < p; }
  template <class T>
  T Pick(std::initializer_list<T> from) {
    return from.begin()[std::uniform_int_distribution<size_t>(0, from.size() - 1)(random_)];
  }
  c10::IValue Of(const c10::Argument& argument, const c10::TypePtr& type);
  at::Tensor Tensor(const std::string& name);
  c10::IValue List(const c10::Argument& argument, const c10::TypePtr& element);
  c10::IValue Text(const std::string& name);
  c10::IValue Weights(const std::string& name);

  std::mt19937 random_;
  int64_t size_, first_rank_, other_rank_;
  at::ScalarType first_dtype_, other_dtype_;
  int tensors_ = 0;  // number made so far
};

// Calls `code` in a child process for attempts 0, 1, ... below `attempts` until it returns false.
// Skips an attempt that throws, or that ends its process, which some calls do by chance (they read
// uninitialized memory): the next attempt runs in another process, of at most 50. A process that
// has used 10 seconds of processor time is the last. Returns the lines that all processes passed to
// Tell. Captured variables of `code` start anew in each process.
using Tell = std::function<void(const std::string&)>;
std::set<std::string> RunApart(unsigned attempts,
                               const std::function<bool(unsigned attempt, const Tell&)>& code);

}  // namespace pipewright
