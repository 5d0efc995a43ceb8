// Calls every operator of LibTorch, with arguments made up by the types of its schema, to see what
// it returns and writes to: passes/graph/aliases.cc must list it.
#include "passes/graph/aliases.h"

#include <ATen/Parallel.h>
#include <gtest/gtest.h>
#include <torch/csrc/jit/runtime/operator.h>

#include <algorithm>
#include <cstdio>
#include <map>
#include <set>

#include "ops/random_ops.h"
#include "tests/made_up_calls.h"

namespace pipewright {
namespace {

using c10::IValue;

struct Item {
  at::Tensor tensor;
  size_t several;  // elements of the list that contains it, or 1
};

void Collect(const IValue& value, std::vector<Item>& items, size_t several = 1) {
  if (value.isTensor() && value.toTensor().defined())
    items.push_back({value.toTensor(), several});
  else if (value.isList())
    for (const IValue& inner : value.toListRef())
      Collect(inner, items, value.toListRef().size());
  else if (value.isTuple())
    for (const IValue& inner : value.toTupleRef().elements()) Collect(inner, items, several);
}

const void* MemoryOf(const at::Tensor& tensor) {
  return tensor.has_storage() && tensor.storage().nbytes() > 0 ? tensor.storage().data() : nullptr;
}

// Throws if the call does not work. Reports one line per observation: "called", "alias INPUT OUTPUT
// ITEMS", "outputs A B", "writes INPUT". `writes` counts the writes to each input: a kernel may
// write once, by chance, beyond tensors that do not fit each other.
void Try(const torch::jit::Operator& op, unsigned attempt, const Tell& tell,
         std::map<size_t, int>& writes) {
  const c10::FunctionSchema& schema = op.schema();
  torch::jit::Stack stack;
  MadeUpArguments arguments(attempt);
  for (const c10::Argument& argument : schema.arguments())
    stack.push_back(arguments.Of(schema, argument));
  std::vector<std::vector<Item>> given;
  std::vector<std::vector<at::Tensor>> before;
  for (const IValue& value : stack) {
    Collect(value, given.emplace_back());
    auto& copies = before.emplace_back();
    for (const Item& item : given.back()) copies.push_back(item.tensor.clone());
  }
  op.getOperation()(stack);
  tell("called");
  std::vector<std::set<const void*>> returned;
  std::set<const void*> ours;
  for (size_t i = 0; i < given.size(); ++i)
    for (size_t k = 0; k < given[i].size(); ++k) {
      const at::Tensor& tensor = given[i][k].tensor;
      ours.insert(MemoryOf(tensor));
      if (tensor.sizes() == before[i][k].sizes() &&
          !at::allclose(tensor, before[i][k], 0, 0, /*equal_nan=*/true) && ++writes[i] > 1)
        tell("writes " + std::to_string(i));
    }
  for (size_t o = 0; o < stack.size(); ++o) {
    std::vector<Item> results;
    Collect(stack[o], results);
    std::set<const void*>& memory = returned.emplace_back();
    for (const Item& result : results)
      if (const void* at = MemoryOf(result.tensor)) memory.insert(at);
    for (size_t i = 0; i < given.size(); ++i)
      for (const Item& item : given[i])
        if (memory.count(MemoryOf(item.tensor)))
          tell("alias " + std::to_string(i) + " " + std::to_string(o) + " " +
               std::to_string(item.several));
    for (size_t other = 0; other < o; ++other)
      for (const void* at : returned[other])
        if (memory.count(at) && !ours.count(at))
          tell("outputs " + std::to_string(other) + " " + std::to_string(o));
  }
}

bool WritesWhatItIsTold(const c10::FunctionSchema& schema) {
  for (const c10::Argument& argument : schema.arguments())
    if (argument.alias_info() && argument.alias_info()->isWrite()) return true;
  return false;
}

// Returns true for the operators that ops/statistics.h handles.
bool Norm(const c10::FunctionSchema& schema) {
  return schema.name() == "aten::batch_norm" || schema.name() == "aten::instance_norm";
}

TEST(Aliases, AreKnownOfEveryOperator) {
  CurrentRandomKey();  // registers ours
  at::set_num_threads(1);
  int called = 0, never = 0;
  for (const auto& op : torch::jit::getAllOperators()) {
    const c10::FunctionSchema& schema = op->schema();
    const bool ours = schema.name().starts_with("pipewright::");
    if ((!schema.name().starts_with("aten::") && !ours) || WritesWhatItIsTold(schema)) continue;
    std::vector<std::pair<size_t, size_t>> pairs;  // pairs that might share memory
    for (size_t i = 0; i < schema.arguments().size(); ++i)
      for (size_t o = 0; o < schema.returns().size(); ++o)
        if (HoldsTensors(schema.arguments()[i].type()) && HoldsTensors(schema.returns()[o].type()))
          pairs.emplace_back(i, o);
    if (pairs.empty()) continue;
    const bool listed = std::all_of(pairs.begin(), pairs.end(), [&](const auto& pair) {
      return AliasOf(schema, pair.first, pair.second) != Alias::kNone;
    });
    if (listed && AliasOf(schema, pairs[0].first, pairs[0].second) == Alias::kUnknown) {
      ++never;
      continue;
    }
    const std::set<std::string> seen =
        RunApart(1200, [&, worked = 0, writes = std::map<size_t, int>()](
                           unsigned attempt, const Tell& tell) mutable {
          Try(*op, attempt, tell, writes);
          return ++worked < 50;
        });
    for (const std::string& line : seen) {
      size_t i = 0, o = 0, items = 1;
      if (std::sscanf(line.c_str(), "alias %zu %zu %zu", &i, &o, &items) == 3)
        EXPECT_EQ(AliasOf(schema, i, o, items), Alias::kKnown)
            << schema << "\nreturns memory of argument " << i << " in result " << o
            << (items > 1 ? ", of several in a list" : "");
      else if (std::sscanf(line.c_str(), "writes %zu", &i) == 1)
        EXPECT_TRUE(WritesTo(schema, i) || Norm(schema)) << schema << "\n" << line;
      else if (line != "called")
        ADD_FAILURE() << schema << "\n" << line;
    }
    called += static_cast<int>(seen.count("called"));
    EXPECT_TRUE(seen.count("called") || listed)
        << schema << "\ncould not be called: it belongs among those of which nobody knows";
  }
  std::printf("%d operators called, %d never\n", called, never);
  EXPECT_GT(called, 4 * never);
}

}  // namespace
}  // namespace pipewright
