// A part of cuts.h: finds cuts that even out cost or size.
#include <algorithm>
#include <cstdio>
#include <map>
#include <set>
#include <tuple>
#include <unordered_map>

#include "base/error.h"
#include "base/size.h"
#include "base/symbol.h"
#include "base/text.h"
#include "passes/graph/error_context.h"
#include "passes/graph/gradients.h"
#include "passes/graph/hidden_memory.h"
#include "passes/graph/memory.h"
#include "passes/graph/node_cost.h"
#include "passes/graph/unset.h"
#include "passes/split/cuts.h"
#include "passes/split/layouts.h"

namespace pipewright {

using torch::jit::Node;
using torch::jit::Value;

namespace {

// The operations in order, with the consequences of a cut before each.
struct Places {
  std::vector<const Node*> nodes;
  // hidden: the cut would separate a write from what it changes or a tensor from an operation that
  // depends on its layout, or let a tensor of unknown sizes cross; empty: no such cuts.
  std::vector<bool> allowed, hidden;
  std::vector<int> crossing;          // tensors alive across the cut before each node
  // Number of submodule calls that a cut before each node would divide: 0 between the model's own
  // layers. Empty: not considered.
  std::vector<size_t> parted;

  explicit Places(const Model& model) {
    std::unordered_map<const Node*, size_t> position;
    Regions regions;
    for (const Node* node : model.graph->nodes()) {
      const ErrorContext here(node);
      bool inside = regions.inside;
      regions.Pass(node);
      if (!IsOperation(node)) continue;
      position[node] = nodes.size();
      nodes.push_back(node);
      allowed.push_back(!inside && node->kind() != torch::jit::prim::ListUnpack);
    }
    crossing.assign(nodes.size() + 1, 0);
    for (size_t i = 0; i < nodes.size(); ++i) {
      const ErrorContext here(nodes[i]);
      for (const Value* output : nodes[i]->outputs()) {
        const bool unset = MayBeUnset(output);
        if (IsNumber(output) && !unset) continue;
        const size_t last = Users(model, position, output, i).second;
        // A list, a string, or a value that may be unset cannot leave a module.
        if (output->type()->kind() != c10::TypeKind::TensorType || unset) {
          for (size_t k = i + 1; k <= last; ++k) allowed[k] = false;
          continue;
        }
        if (last > i) ++crossing[i + 1], --crossing[std::min(last + 1, nodes.size())];
      }
    }
    for (size_t i = 1; i < crossing.size(); ++i) crossing[i] += crossing[i - 1];
    ForbidHiddenWrites(model, position);
    AvoidSizesOfData(model, position);
    KeepLayouts(model, position);
    for (const Node* node : model.graph->nodes())
      if (node->kind() == torch::jit::prim::ListConstruct && Grows(node->output())) {
        auto [first, last] = Users(model, position, node->output(), nodes.size());
        for (size_t k = first + 1; k <= last && k < nodes.size(); ++k) allowed[k] = false;
      }
  }

  static bool IsWeight(const Model& model, const Value* value) {
    return value->node() == model.graph->param_node() && value->offset() < model.weights.size();
  }

  // Returns the memory in which a write also changes what earlier operations saved for their
  // backward.
  static Memory::Values MemoryBehindAutograd(const Model& model, Memory& memory) {
    Memory::Values values;
    for (const Node* node : AllNodes(*model.graph))
      if (HidesMemory(node))
        for (const Value* value : memory.Of(node->input(0)))
          if (!IsWeight(model, value)) values.insert(value);
    return values;
  }

  // Forbids cuts before a write that two views of the written memory would cross: they would become
  // two separate tensors. `written` has the positions of the writes by memory.
  template <typename Forbid>
  void ForbidPartedViews(const Model& model,
                         const std::unordered_map<const Node*, size_t>& position, Memory& memory,
                         const std::map<const Value*, std::vector<size_t>>& written,
                         const Forbid& forbid) {
    std::map<const Value*, std::vector<const Value*>> views;
    auto view = [&](const Value* value) {
      if (value->type()->kind() == c10::TypeKind::TensorType)
        for (const Value* of : memory.Of(value))
          if (written.count(of) && !IsWeight(model, of)) views[of].push_back(value);
    };
    for (size_t i = model.first_input(); i < model.graph->inputs().size(); ++i)
      view(model.graph->inputs()[i]);
    for (const Node* node : nodes)
      for (const Value* output : node->outputs()) view(output);
    for (const auto& [memory_of, values] : views) {
      const std::vector<size_t>& places = written.at(memory_of);
      std::vector<int> alive(nodes.size() + 2, 0);  // changes between positions
      for (const Value* value : values) {
        auto made = position.find(value->node());
        const size_t first = made == position.end() ? 0 : made->second + 1;
        const size_t last = Users(model, position, value, 0).second;
        if (first <= last) ++alive[first], --alive[last + 1];
      }
      int count = 0;
      const size_t last_write = *std::max_element(places.begin(), places.end());
      for (size_t k = 0; k <= last_write; ++k)
        if ((count += alive[k]) > 1) forbid(k, k);
    }
  }

  // Forbids cuts between an in-place operation and later uses of its memory, and between the uses
  // of a weight that is written: isolate_writes would refuse them.
  void ForbidHiddenWrites(const Model& model,
                          const std::unordered_map<const Node*, size_t>& position) {
    std::vector<Write> writes;
    for (const auto& [node, at] : position) CollectWrites(const_cast<Node*>(node), at, writes);
    if (writes.empty()) return;
    Memory memory(model, Alias::kUnknown);
    std::map<const Value*, std::vector<size_t>> written;  // by memory: positions of writes
    for (const Write& write : writes)
      for (const Value* value : memory.Written(write)) written[value].push_back(write.position);
    std::map<const Value*, std::pair<size_t, size_t>> weight_uses;  // first and last, if written
    for (const Value* input : model.graph->inputs())
      if (input->offset() < model.weights.size() && written.count(input))
        weight_uses.try_emplace(input, nodes.size(), 0);
    const Memory::Values behind_autograd = MemoryBehindAutograd(model, memory);
    const auto gradient = ValuesWithGradient(model);
    auto has_backward = [&](size_t at) {
      const auto outputs = nodes[at]->outputs();
      return std::any_of(outputs.begin(), outputs.end(),
                         [&](const Value* output) { return gradient.count(output) > 0; });
    };
    std::vector<int> forbidden(nodes.size() + 2, 0);  // changes between positions
    auto forbid = [&](size_t first, size_t last) {
      if (first <= last) ++forbidden[first], --forbidden[std::min(last, nodes.size()) + 1];
    };
    auto use = [&](const Value* input, size_t at) {
      if (!HasMemory(input)) return;
      std::vector<size_t> places;
      for (const Value* value : memory.Of(input)) {
        if (auto weight = weight_uses.find(value); weight != weight_uses.end()) {
          auto& [first, last] = weight->second;
          first = std::min(first, at), last = std::max(last, std::min(at, nodes.size() - 1));
        } else if (auto found = written.find(value); found != written.end()) {
          places.insert(places.end(), found->second.begin(), found->second.end());
        }
      }
      std::sort(places.begin(), places.end());
      auto behind = std::lower_bound(places.begin(), places.end(), at);
      if (behind == places.begin()) {  // used before any write
        if (!places.empty() && at < nodes.size() && has_backward(at) &&
            Intersect(memory.Of(input), behind_autograd))
          forbid(at + 1, places.back());
        return;
      }
      if (input->node() == model.graph->param_node()) {
        forbid(places.front() + 1, at);  // created outside: written and used in one module
        return;
      }
      auto made = position.find(input->node());
      if (made != position.end() && made->second < *(behind - 1))
        forbid(made->second + 1, *(behind - 1));
    };
    for (size_t i = 0; i < nodes.size(); ++i)
      for (Node* inner : WithInner(const_cast<Node*>(nodes[i]))) {
        const ErrorContext here(inner);
        for (const Value* input : inner->inputs()) use(input, i);
      }
    for (const Value* output : model.graph->outputs()) use(output, nodes.size());
    for (const Value* value : behind_autograd)
      if (auto made = position.find(value->node());
          written.count(value) && made != position.end() && has_backward(made->second))
        forbid(made->second + 1, *std::max_element(written[value].begin(), written[value].end()));
    for (const auto& [weight, uses] : weight_uses) forbid(uses.first + 1, uses.second);
    ForbidPartedViews(model, position, memory, written, forbid);
    hidden.assign(nodes.size(), false);
    int depth = 0;
    for (size_t i = 0; i < nodes.size(); ++i) hidden[i] = (depth += forbidden[i]) > 0;
  }

  // Avoids cuts that a tensor would cross whose sizes depend on the data (the result of nonzero,
  // for example): it cannot be sent between ranks.
  void AvoidSizesOfData(const Model& model,
                        const std::unordered_map<const Node*, size_t>& position) {
    std::set<std::string> known;
    auto is_known = [&](const std::string& symbol) { return known.count(symbol) > 0; };
    for (size_t i = model.first_input(); i < model.graph->inputs().size(); ++i)
      if (const ValueMeta* meta = model.MetaOf(model.graph->inputs()[i]))
        for (const std::string& size : meta->shape)
          for (const std::string& symbol : SymbolsOf(size)) known.insert(symbol);
    for (size_t i = 0; i < nodes.size(); ++i)
      for (const Value* output : nodes[i]->outputs()) {
        const ErrorContext here(nodes[i]);
        const ValueMeta* meta = model.MetaOf(output);
        if (!meta || output->type()->kind() != c10::TypeKind::TensorType) continue;
        if (std::all_of(meta->shape.begin(), meta->shape.end(), [&](const std::string& size) {
              const std::vector<std::string> symbols = SymbolsOf(size);
              return std::all_of(symbols.begin(), symbols.end(), is_known);
            }))
          continue;
        hidden.resize(nodes.size());
        const size_t last = Users(model, position, output, i).second;
        for (size_t k = i + 1; k <= last; ++k) hidden[k] = true;
      }
  }

  // Avoids cuts that passes/split/layouts.h would refuse.
  void KeepLayouts(const Model& model, const std::unordered_map<const Node*, size_t>& position) {
    auto place = [&](const Node* node) {
      while (node->owningBlock() != model.graph->block()) node = node->owningBlock()->owningNode();
      return position.find(node);
    };
    for (const LayoutUse& use : LayoutUses(model)) {
      const auto made = place(use.value->node()), used = place(use.user);
      if (made == position.end() || used == position.end()) continue;
      hidden.resize(nodes.size());
      for (size_t k = made->second + 1; k <= used->second; ++k) hidden[k] = true;
    }
  }

  static bool IsNumber(const Value* value) {
    const auto kind = value->type()->kind();
    return kind == c10::TypeKind::IntType || kind == c10::TypeKind::FloatType ||
           kind == c10::TypeKind::BoolType || kind == c10::TypeKind::NoneType;
  }

  // Returns true if something may be appended to the list: it is one object, which one module
  // holds.
  static bool Grows(const Value* list) {
    for (const auto& use : list->uses()) {
      const c10::FunctionSchema* schema = use.user->maybeSchema();
      if (schema && schema->is_mutable() &&
          schema->is_mutable({c10::SchemaArgType::input, use.offset}))
        return true;
    }
    return false;
  }

  // Returns the first and last operation that use `value`, also through lists; `none` and 0 if no
  // operation does.
  static std::pair<size_t, size_t> Users(const Model& model,
                                         const std::unordered_map<const Node*, size_t>& position,
                                         const Value* value, size_t none) {
    std::pair<size_t, size_t> found{none, 0};
    std::vector<const Value*> reaching = {value};
    while (!reaching.empty()) {
      const Value* next = reaching.back();
      reaching.pop_back();
      for (const auto& use : next->uses()) {
        const Node* user = use.user;
        while (user->owningBlock() != model.graph->block())
          user = user->owningBlock()->owningNode();
        if (user->kind() == torch::jit::prim::ListConstruct)
          reaching.push_back(user->outputs()[0]);
        else if (auto at = position.find(user); at != position.end())
          found = {std::min(found.first, at->second), std::max(found.second, at->second)};
      }
    }
    return found;
  }

  bool Allowed(size_t i) const { return allowed[i] && (hidden.empty() || !hidden[i]); }

  void CountPartedCalls() {
    parted.assign(nodes.size(), 0);
    for (size_t i = 1; i < nodes.size(); ++i) {
      const ErrorContext here(nodes[i]);
      const std::vector<std::string> before = ModuleStack(nodes[i - 1]),
                                     behind = ModuleStack(nodes[i]);
      const size_t most = std::min(before.size(), behind.size());
      while (parted[i] < most && before[parted[i]] == behind[parted[i]]) ++parted[i];
    }
  }

  // Returns the best place in [first, last] to cut: the one with the fewest crossing tensors, then
  // the fewest divided calls, then the nearest to `ideal`; 0 if none is allowed. With `any`, places
  // where a write may be hidden are allowed too, and isolate_writes checks them.
  size_t Best(size_t first, size_t last, size_t ideal, bool any = false) const {
    size_t best = 0;
    auto cost = [&](size_t i) {
      return std::tuple(crossing[i], parted.empty() ? 0 : parted[i],
                        i > ideal ? i - ideal : ideal - i);
    };
    for (size_t i = std::max<size_t>(1, first); i < nodes.size() && i <= last; ++i)
      if ((any ? allowed[i] : Allowed(i)) && (best == 0 || cost(i) < cost(best))) best = i;
    return best;
  }
};

// Cuts into `count` modules, each cut near the place where the accumulated `cost` reaches its
// share.
Cuts ByShare(const SplitSpec& split, const Places& places, const std::vector<double>& cost,
             std::vector<std::string>& warnings) {
  const std::string where = "--split " + split.text;
  size_t n = places.nodes.size(), count = static_cast<size_t>(split.count);
  if (count > n)
    throw Error(where, "the model has only " + std::to_string(n) + " operations",
                "ask for fewer modules");
  std::vector<double> sum(n + 1, 0);  // by position before each node
  for (size_t i = 0; i < n; ++i) sum[i + 1] = sum[i] + cost[i];
  auto at = [&](double share) {
    return static_cast<size_t>(std::lower_bound(sum.begin(), sum.end(), sum[n] * (share - 1e-9)) -
                               sum.begin());
  };
  // A cut may move this far from its share, as a fraction of a share, to reduce the number of
  // crossing tensors.
  const double reach = split.kind == SplitSpec::kEqual ? 0.5 : 0.12;
  Cuts cuts;
  size_t after = 0;
  int elsewhere = 0;  // cuts without an allowed place in their share of the model
  for (size_t k = 1; k < count; ++k) {
    double share = static_cast<double>(k) / static_cast<double>(count);
    double slack = reach / static_cast<double>(count);
    if (places.Best(at(share - slack), at(share + slack), at(share)) == 0) ++elsewhere;
    size_t best = places.Best(std::max(after + 1, at(share - slack)), at(share + slack), at(share));
    // No cut is allowed there: everything lies in regions, or before the last cut.
    if (best == 0) best = places.Best(after + 1, n - (count - k), at(share));
    if (best == 0) best = places.Best(after + 1, n - (count - k), at(share), true);
    if (best == 0) {
      const auto fits = std::count(places.allowed.begin() + 1, places.allowed.end(), true);
      throw Error(where,
                  "there are not enough places to cut: the model has " + std::to_string(fits) +
                      ", since branches, loops, and code that returns early stay whole",
                  "ask for fewer modules");
    }
    after = best;
    char text[64];
    std::snprintf(text, sizeof text, "%.0f%% of the %s lie before it", 100 * sum[best] / sum[n],
                  split.kind == SplitSpec::kEqual ? "operations" : "cost");
    cuts[places.nodes[best]] = text;
  }
  if (elsewhere > 0)
    warnings.push_back(where + ": near " + std::to_string(elsewhere) + " of the " +
                       Counted(static_cast<int64_t>(count) - 1, "place") +
                       " that equal shares ask for, the model cannot be cut (a region, a list, a "
                       "write in place, or sizes that depend on the data), so that shares are "
                       "unequal: --explain shows them; ask for fewer modules");
  return cuts;
}

Cuts BySize(const Model& model, const SplitSpec& split, const Places& places) {
  Cuts cuts;
  std::set<const Value*> held;
  int64_t bytes = 0;
  size_t start = 0, last_use = 0;  // start of the module, and last use of its weights
  for (size_t i = 0; i < places.nodes.size(); ++i) {
    const ErrorContext here(places.nodes[i]);
    std::vector<const Value*> fresh;
    int64_t more = 0;
    std::vector<const Value*> inputs;
    for (const Value* input : places.nodes[i]->inputs()) inputs.push_back(input);
    for (size_t k = 0; k < inputs.size(); ++k) {
      const Value* input = inputs[k];
      if (input->node()->kind() == torch::jit::prim::ListConstruct)
        for (const Value* element : input->node()->inputs()) inputs.push_back(element);
      if (input->node() != model.graph->param_node() || input->offset() >= model.weights.size() ||
          held.count(input) || std::find(fresh.begin(), fresh.end(), input) != fresh.end())
        continue;
      const Weight& weight = model.weights[input->offset()];
      int64_t size = static_cast<int64_t>(c10::elementSize(weight.dtype));
      for (int64_t d : weight.shape) size *= d;
      more += size;
      fresh.push_back(input);
    }
    if (more && bytes && bytes + more > split.bytes) {
      size_t best = places.Best(std::max(start, last_use) + 1, i, i);
      if (best == 0)
        throw Error("--split " + split.text,
                    "a module cannot be cut before " + Origin(places.nodes[i]),
                    "allow larger modules");
      cuts[places.nodes[best]] = "with more its weights would pass " + SizeText(split.bytes);
      start = best, bytes = 0;
      held.clear();
      --i;  // visit it again as the first of its module
      continue;
    }
    if (more > split.bytes)
      throw Error("--split " + split.text,
                  Origin(places.nodes[i]) + " alone uses weights of " + SizeText(more),
                  "allow modules of that size");
    if (more) last_use = i;
    bytes += more;
    held.insert(fresh.begin(), fresh.end());
  }
  return cuts;
}

}  // namespace

std::unordered_set<const Node*> Uncuttable(const Model& model) {
  const Places places(model);
  std::unordered_set<const Node*> nodes;
  for (size_t i = 0; i < places.nodes.size(); ++i)
    if (!places.Allowed(i)) nodes.insert(places.nodes[i]);
  return nodes;
}

Cuts CutsByCost(const Model& model, const SplitSpec& split, std::vector<std::string>& warnings) {
  Places places(model);
  if (split.kind == SplitSpec::kSize) return BySize(model, split, places);
  if (split.kind == SplitSpec::kEqual) places.CountPartedCalls();
  std::vector<double> cost;
  for (const Node* node : places.nodes) {
    const ErrorContext here(node);
    cost.push_back(split.kind == SplitSpec::kEqual ? 1 : CostOf(model, node).Total());
  }
  return ByShare(split, places, cost, warnings);
}

}  // namespace pipewright
