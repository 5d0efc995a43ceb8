#include "passes/split/bodies.h"

#include <algorithm>
#include <map>
#include <set>

#include "passes/graph/error_context.h"
#include "passes/graph/memory.h"

namespace pipewright {

using torch::jit::Node;
using torch::jit::Value;

namespace {

// Returns the submodule's own name for a weight it uses: the one with the longest common prefix
// with its path.
std::string NameFor(const Weight& weight, const Node* user) {
  const std::string* best = &weight.names[0];
  size_t longest = 0;
  for (std::string path : ModuleStack(user)) {
    path = path.substr(0, path.find('@')) + ".";
    for (const std::string& name : weight.names)
      if (name.rfind(path, 0) == 0 && path.size() > longest) best = &name, longest = path.size();
  }
  return *best;
}

// Adds weights of the state dict that no operation uses to the module that holds their nearest
// relatives by name, so that they stay in the package.
void KeepUnused(const Model& model, std::vector<ModuleBody>& bodies) {
  std::vector<bool> used(model.weights.size(), false);
  std::map<std::string, size_t> module_of;  // first module for every dotted prefix of a held name
  auto prefixes = [](const std::string& name) {
    std::vector<std::string> all;  // longest first
    for (size_t dot = name.rfind('.'); dot != std::string::npos && dot > 0;
         dot = name.rfind('.', dot - 1))
      all.push_back(name.substr(0, dot));
    return all;
  };
  for (size_t m = 0; m < bodies.size(); ++m)
    for (const auto& [index, name] : bodies[m].weights) {
      used[index] = true;
      for (const std::string& prefix : prefixes(name)) module_of.emplace(prefix, m);
    }
  for (size_t i = 0; i < model.weights.size() && !bodies.empty(); ++i) {
    const Weight& weight = model.weights[i];
    if (used[i] || weight.kind == WeightKind::kConstant || !weight.persistent) continue;
    size_t module = 0;
    for (const std::string& prefix : prefixes(weight.names[0])) {
      auto found = module_of.find(prefix);
      if (found == module_of.end()) continue;
      module = found->second;
      break;
    }
    bodies[module].weights.emplace_back(i, weight.names[0]);
  }
}

// Returns true if the module writes to a weight: that change outlasts the call.
bool WritesWeights(const Model& model, const std::vector<Node*>& nodes) {
  std::vector<Write> writes;
  for (Node* node : nodes) CollectWrites(node, 0, writes);
  if (writes.empty()) return false;
  Memory memory(nodes, Alias::kUnknown);
  Memory::Values weights;
  for (size_t i = 0; i < model.weights.size(); ++i) weights.insert(model.weight_input(i));
  for (const Write& write : writes)
    if (Intersect(memory.Written(write), weights)) return true;
  return false;
}

// Names the values that cross between modules: some have no name after import and passes.
void NameCrossing(const Model& model, const ModuleAssignment& assignment) {
  std::set<std::string> taken;
  std::vector<Value*> unnamed;
  for (Node* node : AllNodes(*model.graph))
    for (Value* output : node->outputs())
      if (output->hasDebugName()) taken.insert(output->debugName());
  for (Value* input : model.graph->inputs()) taken.insert(input->debugName());
  for (Node* node : model.graph->nodes()) {
    for (Value* output : node->outputs()) {
      if (output->hasDebugName()) continue;
      bool crosses = false;
      for (const auto& use : output->uses()) {
        Node* user = use.user;
        while (user->owningBlock() != model.graph->block())
          user = user->owningBlock()->owningNode();
        auto module = assignment.module_of.find(user);
        crosses = crosses || module == assignment.module_of.end() ||
                  module->second != assignment.module_of.at(node);
      }
      if (crosses) unnamed.push_back(output);
    }
  }
  for (Value* value : unnamed) {
    std::string wanted = Identifier(value->node()->kind().toUnqualString());
    const auto& outputs = model.graph->outputs();
    if (value->node()->kind() == torch::jit::prim::Constant)  // a constant that crosses is returned
      wanted = "output_" +
               std::to_string(std::find(outputs.begin(), outputs.end(), value) - outputs.begin());
    std::string name = wanted;
    for (int k = 1; !taken.insert(name).second; ++k) name = wanted + "_" + std::to_string(k);
    value->setDebugName(name);
  }
}

}  // namespace

std::string UserText(const ModuleBody& body, const Value* value) {
  for (Node* node : body.nodes)
    for (const Node* inner : WithInner(node))
      for (const Value* input : inner->inputs())
        if (input == value)
          return std::string(", ") + inner->kind().toQualString() + ", " + Origin(node);
  return "";
}

std::vector<ModuleBody> CollectBodies(const Model& model, const ModuleAssignment& assignment) {
  NameCrossing(model, assignment);
  size_t count = static_cast<size_t>(assignment.modules);
  std::vector<ModuleBody> bodies(count);
  for (size_t m = 0; m < assignment.reasons.size() && m < count; ++m)
    bodies[m].reason = assignment.reasons[m];
  for (const auto& [module, note] : assignment.notes)
    if (module >= 0 && module < assignment.modules)
      bodies[static_cast<size_t>(module)].notes.push_back(note);
  for (Node* node : model.graph->nodes())
    bodies[static_cast<size_t>(assignment.module_of.at(node))].nodes.push_back(node);
  // First and last module of every submodule.
  std::map<std::string, std::pair<size_t, size_t>> spread;
  for (size_t m = 0; m < count; ++m)
    for (const Node* node : bodies[m].nodes)
      if (node->kind() != torch::jit::prim::Constant)
        for (const std::string& path : ModuleStack(node))
          spread.try_emplace(path, m, m).first->second.second = m;
  const Node* parameters = model.graph->param_node();
  auto producer = [&](const Value* value) {
    auto found = assignment.module_of.find(value->node());
    return found == assignment.module_of.end() ? -1 : found->second;
  };
  // Runs backward, so that values used only by dead modules are not outputs.
  std::set<const Value*> wanted(model.graph->outputs().begin(), model.graph->outputs().end());
  std::vector<bool> alive(count, false);
  for (size_t m = count; m-- > 0;) {
    ModuleBody& body = bodies[m];
    body.assigned = static_cast<int>(m);
    for (Node* node : body.nodes)
      for (Value* output : node->outputs())
        if (wanted.count(output)) body.outputs.push_back(output);
    alive[m] = !body.outputs.empty() || WritesWeights(model, body.nodes);
    if (!alive[m]) continue;
    std::set<const Value*> seen;
    std::set<size_t> held;
    for (Node* node : body.nodes) {
      const ErrorContext here(node);
      auto visit = [&](Node* user, Value* input) {
        bool top = input->node()->owningBlock() == model.graph->block();
        if (!top || !seen.insert(input).second) return;
        if (input->node() == parameters) {
          size_t index = input->offset();
          if (index < model.weights.size())
            body.weights.emplace_back(index, NameFor(model.weights[index], user));
          else if (input == model.device())
            body.uses_device = true;
          else if (index >= model.first_input())
            body.inputs.push_back(input);
        } else if (producer(input) != static_cast<int>(m)) {
          body.inputs.push_back(input);
          wanted.insert(input);
        }
      };
      for (Node* user : WithInner(node))
        for (Value* input : user->inputs()) visit(user, input);
      if (node->kind() == torch::jit::prim::Constant) continue;
      for (const std::string& path : ModuleStack(node)) {
        if (spread.at(path).first != spread.at(path).second) continue;
        if (std::find(body.covers.begin(), body.covers.end(), path) == body.covers.end())
          body.covers.push_back(path);
        break;
      }
    }
  }
  std::vector<ModuleBody> out;
  for (size_t m = 0; m < count; ++m)
    if (alive[m]) out.push_back(std::move(bodies[m]));
  KeepUnused(model, out);
  return out;
}

}  // namespace pipewright
