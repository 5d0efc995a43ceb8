// Calls every operator of LibTorch, with arguments made up by the types of its schema and tensors
// that require a gradient: passes/graph/gradients.cc must know which have no derivative.
#include "passes/graph/gradients.h"

#include <ATen/Parallel.h>
#include <gtest/gtest.h>
#include <torch/csrc/jit/runtime/operator.h>

#include <algorithm>
#include <cstdio>
#include <set>
#include <string>

#include "tests/made_up_calls.h"

namespace pipewright {
namespace {

using c10::IValue;

bool MayRequireGrad(const at::Tensor& tensor) {
  return tensor.defined() && (tensor.is_floating_point() || tensor.is_complex());
}

void RequireGrad(const IValue& value) {
  if (value.isTensor() && MayRequireGrad(value.toTensor()))
    value.toTensor().set_requires_grad(true);
  else if (value.isList())
    for (const IValue& inner : value.toListRef()) RequireGrad(inner);
}

// The derivatives of results, as far as calls show them.
enum class Seen { kNothing, kDerivative, kNone };

Seen Look(const IValue& value) {
  if (value.isList()) {
    for (const IValue& inner : value.toListRef())
      if (const Seen seen = Look(inner); seen != Seen::kNothing) return seen;
  }
  if (!value.isTensor() || !value.toTensor().defined() || !value.toTensor().grad_fn())
    return Seen::kNothing;
  const std::string name = value.toTensor().grad_fn()->name();
  return name.find("NotImplemented") == std::string::npos ? Seen::kDerivative : Seen::kNone;
}

// Reports "derivative" or "none" if a result has a gradient or would have one, and returns false.
// Throws if the call does not work.
bool TryMore(const torch::jit::Operator& op, unsigned attempt, const Tell& tell) {
  torch::jit::Stack stack;
  MadeUpArguments arguments(attempt);
  for (const c10::Argument& argument : op.schema().arguments()) {
    stack.push_back(arguments.Of(op.schema(), argument));
    RequireGrad(stack.back());
  }
  op.getOperation()(stack);
  tell("called");
  for (const IValue& result : stack)
    if (const Seen seen = Look(result); seen != Seen::kNothing) {
      tell(seen == Seen::kNone ? "none" : "derivative");
      return false;
    }
  return true;
}

// Returns true for operators on tensors. Others have no gradient, and some of them write files.
bool GivesTensorsOfTensors(const c10::FunctionSchema& schema) {
  auto holds = [](const c10::Argument& argument) { return HoldsTensors(argument.type()); };
  auto writes = [](const c10::Argument& argument) {
    return argument.alias_info() && argument.alias_info()->isWrite();
  };
  const auto& given = schema.arguments();
  return std::any_of(given.begin(), given.end(), holds) &&
         std::any_of(schema.returns().begin(), schema.returns().end(), holds) &&
         std::none_of(given.begin(), given.end(), writes);
}

TEST(Gradients, OperatorsWithoutADerivativeAreKnown) {
  at::set_num_threads(1);
  int called = 0, seen = 0, without = 0;
  for (const auto& op : torch::jit::getAllOperators()) {
    const c10::FunctionSchema& schema = op->schema();
    if (!schema.name().starts_with("aten::") || !GivesTensorsOfTensors(schema)) continue;
    const std::set<std::string> told = RunApart(300, [&](unsigned attempt, const Tell& tell) {
      return TryMore(*op, attempt, tell);
    });
    called += static_cast<int>(told.count("called"));
    if (!told.count("none") && !told.count("derivative")) continue;
    ++seen;
    without += static_cast<int>(told.count("none"));
    EXPECT_EQ(HasNoDerivative(schema), told.count("none") > 0) << schema;
  }
  std::printf("%d operators called, %d give a gradient, %d lack a derivative\n", called, seen,
              without);
  EXPECT_GT(seen, 1000);
  EXPECT_GT(without, 20);
}

}  // namespace
}  // namespace pipewright
