// Converts regions of an export: torch.no_grad(), cond, while_loop, scan, map and
// nested_compile_region.
#include <limits>
#include <map>

#include "base/error.h"
#include "compiler/import/export/export_graph.h"

namespace pipewright {

using torch::jit::Block;
using torch::jit::Node;
using torch::jit::Value;
namespace prim = torch::jit::prim;

static std::string NameOf(const ExportJson& argument) {
  const ExportJson& content = argument.begin().value();
  if (!content.is_object()) return "";
  return content.contains("name") ? content["name"].get<std::string>()
                                  : content.value("as_name", std::string());
}

// Returns the arguments from `first` on, with lists unpacked.
std::vector<Value*> ExportConverter::Operands(const ExportJson& node, size_t first) {
  std::vector<Value*> values;
  const ExportJson& inputs = node.at("inputs");
  for (size_t i = first; i < inputs.size(); ++i) {
    std::vector<Value*> more = OperandsOf(inputs[i].at("arg"));
    values.insert(values.end(), more.begin(), more.end());
  }
  return values;
}

std::vector<Value*> ExportConverter::OperandsOf(const ExportJson& argument) {
  const ExportJson& content = argument.begin().value();
  if (!content.is_array()) return {Plain(argument)};
  std::vector<Value*> values;
  for (const ExportJson& entry : content) {
    if (entry.is_object() && entry.contains("name"))
      values.push_back(Lookup(entry["name"].get<std::string>()));
    else if (entry.is_object() && entry.contains("as_name"))
      values.push_back(Lookup(entry["as_name"].get<std::string>()));
    else if (entry.is_object())
      values.push_back(Plain(entry));
    else
      Refuse("passes a list of numbers to a region, which is not supported", "pass tensors");
  }
  return values;
}

// Inserts the nodes of `inner` at the insert point, with `actuals` for its formal inputs.
std::vector<Value*> ExportConverter::Region(const ExportJson& inner,
                                            const std::vector<Value*>& actuals) {
  Env env;
  const ExportJson& formals = inner.at("inputs");
  if (formals.size() != actuals.size())
    Refuse("passes " + std::to_string(actuals.size()) + " values to a region that takes " +
           std::to_string(formals.size()));
  for (size_t i = 0; i < actuals.size(); ++i) env[NameOf(formals[i])] = actuals[i];
  env_.swap(env);
  ConvertNodes(inner);
  std::vector<Value*> outputs;
  for (const ExportJson& output : inner.at("outputs")) {
    std::vector<Value*> more = OperandsOf(output);
    outputs.insert(outputs.end(), more.begin(), more.end());
  }
  env_.swap(env);
  return outputs;
}

const ExportJson& GraphArgument(const ExportJson& node, size_t input) {
  return node.at("inputs").at(input).at("arg").at("as_graph").at("graph");
}

std::vector<std::string> ResultNames(const ExportJson& node) {
  std::vector<std::string> names;
  for (const ExportJson& output : node.at("outputs")) {
    const ExportJson& content = output.begin().value();
    if (content.is_array())
      for (const ExportJson& entry : content)
        names.push_back(entry.contains("name") ? entry["name"].get<std::string>() : NameOf(entry));
    else
      names.push_back(NameOf(output));
  }
  return names;
}

void ExportConverter::BindRegion(const ExportJson& node, const ExportJson& graph,
                                 at::ArrayRef<Value*> values) {
  std::vector<std::string> names = ResultNames(node);
  for (size_t i = 0; i < names.size() && i < values.size(); ++i)
    if (!names[i].empty()) Bind(names[i], values[i], graph);
}

// Binds the outer names of an inlined region's results to its values, which have names already. A
// value that the model returns takes the outer name.
void ExportConverter::BindInlined(const ExportJson& node, const std::vector<Value*>& outputs) {
  std::vector<std::string> names = ResultNames(node);
  for (size_t i = 0; i < names.size() && i < outputs.size(); ++i) {
    env_[names[i]] = outputs[i];
    const auto output = names_.outputs.find(names[i]);
    if (output == names_.outputs.end() || outputs[i]->node() == model_.graph->param_node()) continue;
    auto meta = model_.meta.extract(outputs[i]->debugName());
    outputs[i]->setDebugName(output->second);
    if (!meta.empty()) {
      meta.key() = output->second;
      model_.meta.insert(std::move(meta));
    }
  }
}

// Converts a torch.no_grad() region to ordinary nodes between two switches.
void ExportConverter::ConvertGradRegion(const ExportJson& node) {
  bool enabled = node.at("inputs").at(0).at("arg").at("as_bool").get<bool>();
  auto switch_to = [&](bool on) {
    model_.graph->insertNode(
        model_.graph->create(c10::Symbol::aten("set_grad_enabled"), {Constant(on)}, 0));
  };
  bool outer = grad_enabled_;
  std::vector<Value*> operands = Operands(node, 2);
  switch_to(enabled);
  grad_enabled_ = enabled;
  std::vector<Value*> outputs = Region(GraphArgument(node, 1), operands);
  grad_enabled_ = outer;
  switch_to(outer);
  BindInlined(node, outputs);
}

Value* ExportConverter::Bool(Value* value) {
  if (value->type()->kind() == c10::TypeKind::BoolType) return value;
  return model_.graph->insert(c10::Symbol::aten("Bool"), {value});
}

static bool IsTensor(const Value* value) {
  return value->type()->isSubtypeOf(*c10::TensorType::get());
}

// Returns the results of a branch of cond, with the gradients of ops/cond_gradients.h.
std::vector<Value*> ExportConverter::Branch(const ExportJson& branch,
                                            std::vector<Value*> operands) {
  if (!grad_enabled_) return Region(branch, operands);
  torch::jit::Graph& graph = *model_.graph;
  std::vector<Value*> inside, results;
  std::map<Value*, Value*> taken;  // an operand may be given twice
  for (Value*& operand : operands) {
    if (!IsTensor(operand)) continue;
    Value*& own = taken[operand];
    if (!own) {
      own = graph.insert(c10::Symbol::fromQualString("pipewright::cond_operand"), {operand});
      inside.push_back(own);
      const std::string name = Name(own, operand->debugName() + "_in");
      if (const std::optional<ValueMeta> meta = model_.TensorOf(operand)) model_.meta[name] = *meta;
    }
    operand = own;
  }
  std::vector<Value*> outputs = Region(branch, operands);
  for (Value* output : outputs)
    if (IsTensor(output)) results.push_back(output);
  if (results.empty() || inside.empty()) return outputs;
  auto list = [&](const std::vector<Value*>& values) {
    return graph.insertNode(graph.createList(c10::TensorType::get(), values))->output();
  };
  Value* all = graph.insert(c10::Symbol::fromQualString("pipewright::cond_results"),
                            {list(results), list(inside)});
  Node* parts = graph.insertNode(graph.createListUnpack(all, results.size()));
  size_t next = 0;
  for (Value*& output : outputs)
    if (IsTensor(output)) output = parts->outputs()[next++];
  return outputs;
}

void ExportConverter::ConvertCond(const ExportJson& node, const ExportJson& graph) {
  Value* chosen = Bool(Plain(node.at("inputs").at(0).at("arg")));
  std::vector<Value*> operands = Operands(node, 3);
  Node* choice = model_.graph->insertNode(model_.graph->create(prim::If, {chosen}, 0));
  for (size_t branch : {1, 2}) {
    Block* block = choice->addBlock();
    torch::jit::WithInsertPoint inside(block);
    for (Value* output : Branch(GraphArgument(node, branch), operands))
      block->registerOutput(output);
  }
  if (choice->blocks()[0]->outputs().size() != choice->blocks()[1]->outputs().size())
    Refuse("has branches with different numbers of results");
  for (Value* output : choice->blocks()[0]->outputs()) choice->addOutput()->setType(output->type());
  BindRegion(node, graph, choice->outputs());
}

void ExportConverter::ConvertWhile(const ExportJson& node, const ExportJson& graph) {
  const ExportJson &condition = GraphArgument(node, 0), &body = GraphArgument(node, 1);
  std::vector<Value*> carried = OperandsOf(node.at("inputs").at(2).at("arg"));
  std::vector<Value*> more = Operands(node, 3), all = carried;
  all.insert(all.end(), more.begin(), more.end());
  std::vector<Value*> first = Region(condition, all);
  std::vector<Value*> inputs = {Constant(std::numeric_limits<int64_t>::max()), Bool(first.at(0))};
  inputs.insert(inputs.end(), carried.begin(), carried.end());
  Node* loop = model_.graph->insertNode(model_.graph->create(prim::Loop, inputs, 0));
  Block* block = loop->addBlock();
  block->addInput()->setType(c10::IntType::get());
  std::vector<Value*> held;
  for (Value* value : carried) {
    Value* input = block->addInput();
    input->setType(value->type());
    held.push_back(input);
  }
  {
    torch::jit::WithInsertPoint inside(block);
    std::vector<Value*> actuals = held;
    actuals.insert(actuals.end(), more.begin(), more.end());
    std::vector<Value*> next = Region(body, actuals);
    if (next.size() != carried.size()) Refuse("carries another number of values than it returns");
    actuals = next;
    actuals.insert(actuals.end(), more.begin(), more.end());
    block->registerOutput(Bool(Region(condition, actuals).at(0)));
    for (Value* value : next) block->registerOutput(value);
  }
  for (Value* value : carried) loop->addOutput()->setType(value->type());
  BindRegion(node, graph, loop->outputs());
}

// Runs `body` on each slice of `slices` along the first dimension, and on `more`. Returns the last
// carried values, and the other results of the body, stacked.
std::vector<Value*> ExportConverter::Walk(const ExportJson& body,
                                          const std::vector<Value*>& carried,
                                          const std::vector<Value*>& slices,
                                          const std::vector<Value*>& more) {
  auto& out = *model_.graph;
  if (slices.empty()) Refuse("has no tensor to scan over", "give it one");
  size_t results = 0;
  for (const ExportJson& output : body.at("outputs"))
    results += output.begin().value().is_array() ? output.begin().value().size() : 1;
  if (results < carried.size()) Refuse("returns fewer values than it carries");
  std::vector<Value*> lists;
  for (size_t i = carried.size(); i < results; ++i)
    lists.push_back(out.insertNode(out.createList(c10::TensorType::get(), {}))->output());
  Value* rounds = out.insert(c10::aten::size, {slices[0], Constant(int64_t{0})});
  std::vector<Value*> inputs = {rounds, Constant(true)};
  inputs.insert(inputs.end(), carried.begin(), carried.end());
  Node* loop = out.insertNode(out.create(prim::Loop, inputs, 0));
  Block* block = loop->addBlock();
  Value* counter = block->addInput();
  counter->setType(c10::IntType::get());
  std::vector<Value*> actuals;
  for (Value* value : carried) {
    actuals.push_back(block->addInput());
    actuals.back()->setType(value->type());
  }
  {
    torch::jit::WithInsertPoint inside(block);
    for (Value* slice : slices)
      actuals.push_back(out.insert(c10::aten::select, {slice, Constant(int64_t{0}), counter}));
    actuals.insert(actuals.end(), more.begin(), more.end());
    std::vector<Value*> next = Region(body, actuals);
    for (size_t i = 0; i < lists.size(); ++i)
      out.insert(c10::aten::append, {lists[i], next.at(carried.size() + i)});
    block->registerOutput(Constant(true));
    for (size_t i = 0; i < carried.size(); ++i) block->registerOutput(next.at(i));
  }
  for (Value* value : carried) loop->addOutput()->setType(value->type());
  std::vector<Value*> values = loop->outputs().vec();
  for (Value* list : lists)
    values.push_back(out.insert(c10::aten::stack, {list, Constant(int64_t{0})}));
  return values;
}

// Converts scan(body, init, xs, more).
void ExportConverter::ConvertScan(const ExportJson& node, const ExportJson& graph) {
  std::vector<Value*> carried = OperandsOf(node.at("inputs").at(1).at("arg"));
  std::vector<Value*> slices = OperandsOf(node.at("inputs").at(2).at("arg"));
  BindRegion(node, graph, Walk(GraphArgument(node, 0), carried, slices, Operands(node, 3)));
}

// Converts map(body, xs, more).
void ExportConverter::ConvertMap(const ExportJson& node, const ExportJson& graph) {
  std::vector<Value*> slices = OperandsOf(node.at("inputs").at(1).at("arg"));
  BindRegion(node, graph, Walk(GraphArgument(node, 0), {}, slices, Operands(node, 2)));
}

// Inlines a region that is compiled once and called often.
void ExportConverter::ConvertInline(const ExportJson& node) {
  BindInlined(node, Region(GraphArgument(node, 0), Operands(node, 2)));
}

}  // namespace pipewright
