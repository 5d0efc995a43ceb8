#include "compiler/import/export/export_graph.h"

#include <ATen/core/jit_type.h>
#include <torch/csrc/jit/runtime/graph_iterator.h>

#include <algorithm>
#include <set>

#include "base/error.h"
#include "base/text.h"
#include "base/torch_error.h"
#include "compiler/import/export/expression.h"

namespace pipewright {

using torch::jit::Node;
using torch::jit::Value;

void ExportConverter::Refuse(const std::string& what, const std::string& cure) const {
  std::string where = path_;
  if (current_) {
    where += ": node " + current_->value("name", current_->value("target", std::string("?")));
    auto metadata = current_->find("metadata");
    if (metadata != current_->end()) {
      std::string stack = metadata->value("nn_module_stack", std::string());
      size_t last = stack.rfind(';');
      std::vector<std::string> entry =
          Split(last == std::string::npos ? stack : stack.substr(last + 1), ',');
      const SourceLine line = OwnLine(metadata->value("stack_trace", std::string()));
      if (entry.size() > 1 && !entry[1].empty()) where += ", submodule \"" + entry[1] + "\"";
      if (line.number)
        where += ", File \"" + line.file + "\", line " + std::to_string(line.number);
    }
  }
  throw Error(where, what,
              cure.empty()
                  ? "export again with torch 2.13; if the error persists, report it with the file"
                  : cure);
}

static std::string SizeText(const ExportJson& size) {
  if (size.contains("as_int")) return std::to_string(size["as_int"].get<int64_t>());
  return SizeExpression(size.at("as_expr").at("expr_str").get<std::string>());
}

std::string ExportConverter::Unique(const std::string& id) {
  std::string name = id;
  for (int k = 1; !taken_.insert(name).second; ++k) name = id + "_" + std::to_string(k);
  return name;
}

std::string ExportConverter::Name(Value* value, const std::string& id) {
  const std::string name = Unique(id);
  value->setDebugName(name);
  model_.stems[name] = id;
  return name;
}

void ExportConverter::Rename(Value* value, const std::string& id) {
  const std::string before = value->debugName();
  const std::string after = Name(value, id);
  if (auto meta = model_.meta.extract(before); !meta.empty()) {
    meta.key() = after;
    model_.meta.insert(std::move(meta));
  }
}

void ExportConverter::RenameAll(const std::vector<std::pair<Value*, std::string>>& wanted) {
  std::set<std::string> names;
  for (const auto& [value, id] : wanted) names.insert(id);
  for (const Value* input : model_.graph->inputs()) names.erase(input->debugName());
  taken_.insert(names.begin(), names.end());  // these names are never given to other values
  torch::jit::DepthFirstGraphNodeIterator nodes(model_.graph);
  while (torch::jit::Node* node = nodes.next())
    for (Value* value : node->outputs())
      if (names.count(value->debugName())) Rename(value, value->debugName());
  for (const std::string& name : names) taken_.erase(name);
  for (const auto& [value, id] : wanted) Rename(value, id);
}

void ExportConverter::Bind(const std::string& name, Value* value, const ExportJson& graph) {
  auto output = names_.outputs.find(name);
  auto variable = names_.variables.find(name);
  std::string id;
  if (output != names_.outputs.end()) {
    value->setDebugName(id = output->second);
  } else if (variable != names_.variables.end()) {
    id = Name(value, Identifier(variable->second));
  } else {
    id = Name(value, Identifier(name));
    const size_t end = name.find_last_not_of("0123456789");  // the export's number
    if (end != std::string::npos && end > 0 && end + 1 < name.size() && name[end] == '_')
      model_.stems[id] = Identifier(name.substr(0, end));
  }
  env_[name] = value;
  ValueMeta meta;
  auto tensors = graph.find("tensor_values");
  auto ints = graph.find("sym_int_values");
  if (tensors != graph.end() && tensors->contains(name)) {
    const ExportJson& recorded = (*tensors)[name];
    meta.dtype = ExportDtype(recorded.at("dtype").get<int64_t>());
    for (const ExportJson& size : recorded.at("sizes")) meta.shape.push_back(SizeText(size));
    model_.meta[id] = meta;
  } else if (ints != graph.end() && ints->contains(name)) {
    meta.expression = SizeText((*ints)[name]);
    model_.meta[id] = meta;
  }
}

Value* ExportConverter::Lookup(const std::string& name) {
  auto found = env_.find(name);
  if (found == env_.end()) Refuse("\"" + name + "\" is used before it is made");
  return found->second;
}

Value* ExportConverter::Constant(const c10::IValue& value) {
  return model_.graph->insertConstant(value);
}

Value* ExportConverter::Output(const ExportJson& argument) { return Argument(argument, nullptr); }

// Graph::insert creates nodes whose source has no name.
static bool IsLocated(const Node* node) {
  auto source = node->sourceRange().source();
  return source && source->filename();
}

void ExportConverter::Locate(Node* first, const ExportJson& node) {
  auto metadata = node.find("metadata");
  if (metadata == node.end()) return;
  std::string stack = metadata->value("nn_module_stack", std::string());
  auto [scope, fresh] = scopes_.try_emplace(stack, root_);
  if (fresh) {
    std::string prefix;
    for (const std::string& path : StackPaths(stack)) {
      prefix += ";" + path;
      auto [level, made] = scopes_.try_emplace(prefix, nullptr);
      if (made) level->second = scopes_[stack]->push(c10::Symbol::scope(path));
      scopes_[stack] = level->second;
    }
  }
  std::string trace = metadata->value("stack_trace", std::string());
  auto range = ranges_.find(trace);
  if (range == ranges_.end()) {
    const SourceLine line = OwnLine(trace);
    torch::jit::SourceRange made;
    if (line.number) {
      auto source = std::make_shared<torch::jit::Source>(line.code, line.file, line.number);
      made = torch::jit::SourceRange(source, 0, line.code.size());
    }
    range = ranges_.emplace(trace, made).first;
  }
  const torch::jit::ScopePtr& place = scopes_[stack];
  for (Node* made = first; made != model_.graph->insertPoint(); made = made->next()) {
    if (IsLocated(made)) continue;  // inside a region, already more precise
    for (Node* inner : WithInner(made))
      if (!IsLocated(inner)) inner->setSourceRange(range->second);
    made->setScope(place);
    made->setSourceRange(range->second);
  }
}

// An export asserts the input of every cast; run_decompositions() removes casts without effect but
// leaves the assertions. Such a cast is inserted as an unused one, because --dtype looks for it.
void ExportConverter::NoteDroppedCast(const ExportJson& assertion, const ExportJson* next) {
  if (assertion.at("target") != "torch.ops.aten._assert_tensor_metadata.default") return;
  const std::string target = next ? next->at("target").get<std::string>() : "";
  const ExportJson& inputs = assertion.at("inputs");
  const ExportJson& given = inputs.at(0).at("arg");
  for (const char* cast : {"torch.ops.aten.to.", "torch.ops.aten._to_copy."})
    if (target.rfind(cast, 0) == 0 && next->at("inputs").at(0).at("arg") == given) return;
  for (const ExportJson& input : inputs)
    if (input.at("name") == "dtype" && input.at("arg").contains("as_scalar_type"))
      model_.graph->insert(c10::aten::to, {Plain(given), Plain(input["arg"])});
}

void ExportConverter::ConvertNodes(const ExportJson& graph) {
  const ExportJson& nodes = graph.at("nodes");
  Names names{VariablesOf(nodes), {}};  // a region may reuse names of the outer graph
  for (const std::string& output : ResultNames(graph)) {
    names.variables.erase(output);  // jobs name what the model returns
    if (!output.empty() && !env_.count(output)) names.outputs[output] = Unique(Identifier(output));
  }
  std::swap(names_, names);
  for (size_t i = 0; i < nodes.size(); ++i) {
    const ExportJson& node = nodes[i];
    const ExportJson* outer = current_;
    current_ = &node;
    Node* last = model_.graph->insertPoint()->prev();
    NoteDroppedCast(node, i + 1 < nodes.size() ? &nodes[i + 1] : nullptr);
    ConvertNode(node, graph);
    Locate(last->next(), node);
    current_ = outer;
  }
  std::swap(names_, names);
}

void ExportConverter::ConvertNode(const ExportJson& node, const ExportJson& graph) {
  try {
    if (!ConvertSpecial(node, graph)) ConvertOperator(node, graph);
  } catch (const nlohmann::json::exception& e) {
    Refuse(std::string("model.json does not follow the schema: ") + e.what());
  } catch (const Error&) {
    throw;
  } catch (const std::exception& e) {  // LibTorch's errors
    Refuse("calls " + node.value("target", std::string("?")) +
               ", which cannot be expressed in TorchScript here: " + WithoutBacktrace(e.what()),
           "write that line with other operations");
  }
}

void ExportConverter::BindOutputs(const ExportJson& node, const ExportJson& graph,
                                  at::ArrayRef<Value*> values) {
  const ExportJson& outputs = node.at("outputs");
  if (outputs.size() > values.size())
    Refuse("records " + std::to_string(outputs.size()) + " outputs, its operator returns " +
           std::to_string(values.size()));
  for (size_t i = 0; i < outputs.size(); ++i) {
    const ExportJson& output = outputs[i];
    const std::string kind = output.begin().key();
    const ExportJson& content = output.begin().value();
    if (kind == "as_tensor") {
      Bind(content.at("name").get<std::string>(), values[i], graph);
    } else if (kind == "as_tensors") {
      Node* unpack =
          model_.graph->insertNode(model_.graph->createListUnpack(values[i], content.size()));
      for (size_t k = 0; k < content.size(); ++k)
        Bind(content[k].at("name").get<std::string>(), unpack->outputs()[k], graph);
    } else if (kind == "as_sym_int" || kind == "as_sym_bool" || kind == "as_sym_float") {
      if (content.contains("as_name"))
        Bind(content["as_name"].get<std::string>(), values[i], graph);
    } else if (kind != "as_none") {
      Refuse("has an output of kind " + kind + ", which is not supported");
    }
  }
}

// Returns true if x.mul_(0.9) needs a tensor factor: the overload for numbers first rounds the
// factor to the 16 bits of x, unlike Python.
bool ExportConverter::HasSixteenBits(const Value* value) const {
  const std::optional<ValueMeta> meta = model_.TensorOf(value);
  return meta && (meta->dtype == at::kBFloat16 || meta->dtype == at::kHalf);
}

static bool IsBool(const ExportJson& argument) {
  return argument.contains("as_bool") || argument.contains("as_sym_bool");
}

namespace {

using Given = std::unordered_map<std::string, const ExportJson*>;

}  // namespace

// Returns the overload of `op` that takes tensors for the numbers that are `given` as bools, or
// `op` if there is none: there a bool acts like the integer.
static std::shared_ptr<torch::jit::Operator> TakesBools(std::shared_ptr<torch::jit::Operator> op,
                                                        const Given& given) {
  const std::vector<c10::Argument>& own = op->schema().arguments();
  auto element = [](const c10::Argument& argument) {
    auto optional = argument.type()->cast<c10::OptionalType>();
    return optional ? optional->getElementType() : argument.type();
  };
  auto number = [&](const c10::Argument& argument) {
    auto found = given.find(argument.name());
    return found != given.end() && IsBool(*found->second) &&
           element(argument)->kind() == c10::TypeKind::NumberType;
  };
  // A power or an interpolation has no derivative with a bool tensor: PyTorch subtracts one from
  // the exponent, and the weight from one, which bools do not support.
  if (op->schema().name() == "aten::pow" || op->schema().name() == "aten::lerp") return op;
  if (std::none_of(own.begin(), own.end(), number)) return op;
  for (const auto& other : torch::jit::getAllOperatorsFor(
           c10::Symbol::fromQualString(op->schema().name()))) {
    const std::vector<c10::Argument>& theirs = other->schema().arguments();
    bool fits = theirs.size() == own.size();
    for (size_t i = 0; fits && i < own.size(); ++i)
      fits = theirs[i].name() == own[i].name() &&
             (number(own[i]) ? element(theirs[i])->kind() == c10::TypeKind::TensorType
                             : !given.count(own[i].name()) || *theirs[i].type() == *own[i].type());
    if (fits) return other;
  }
  return op;
}

static std::optional<at::ScalarType> ResultDtype(const ExportJson& node, const ExportJson& graph) {
  const std::vector<std::string> names = ResultNames(node);
  const ExportJson& tensors = graph.at("tensor_values");
  auto found = names.size() == 1 ? tensors.find(names[0]) : tensors.end();
  if (found == tensors.end()) return std::nullopt;
  return ExportDtype(found->at("dtype").get<int64_t>());
}

// Converts the numbers among `inputs` to tensors where `schema` takes tensors, as Python does. A
// tensor without dimensions promotes like a number next to a tensor with dimensions of the same
// kind; otherwise it takes the dtype of the result. Returns false if that dtype is not known.
bool ExportConverter::NumbersToTensors(const c10::FunctionSchema& schema,
                                       std::optional<at::ScalarType> result,
                                       std::vector<Value*>& inputs) {
  if (!result) return false;
  bool kept = false;  // numbers have 64 bits next to a tensor of the result's dtype
  for (const Value* input : inputs)
    if (const std::optional<ValueMeta> meta = model_.TensorOf(input))
      kept = kept || (!meta->shape.empty() && meta->dtype == *result);
  for (size_t i = 0; i < inputs.size(); ++i) {
    const auto kind = inputs[i]->type()->kind();
    if (schema.arguments()[i].type()->kind() != c10::TypeKind::TensorType ||
        (kind != c10::TypeKind::IntType && kind != c10::TypeKind::FloatType))
      continue;
    const at::ScalarType own = kind == c10::TypeKind::IntType ? at::kLong : at::kDouble;
    inputs[i] = model_.graph->insert(
        c10::Symbol::aten("scalar_tensor"), {inputs[i]},
        {{"dtype", static_cast<int64_t>(kept ? own : *result)}});
  }
  return true;
}

// They cast inside, so autocast is on while they run.
static bool IsRecurrent(const std::string& name) {
  static const std::set<std::string> kNames = {"lstm",          "gru",          "rnn_tanh",
                                               "rnn_relu",      "lstm_cell",    "gru_cell",
                                               "rnn_tanh_cell", "rnn_relu_cell"};
  return kNames.count(name) > 0;
}

void ExportConverter::ConvertOperator(const ExportJson& node, const ExportJson& graph) {
  const std::string target = node.at("target").get<std::string>();
  std::vector<std::string> parts = Split(target, '.');
  if (parts.size() < 4 || parts[0] != "torch" || parts[1] != "ops")
    Refuse("calls " + target + ", which only Python knows",
           "write that part of the model with operators of torch");
  const std::string& space = parts[2];
  if (space == "higher_order")
    Refuse("uses the higher-order operator " + parts[3] + ", which is not supported",
           "write it as ordinary operations, or with torch.cond, while_loop, scan or map; some "
           "vanish with torch.export.export(...).run_decompositions({})");
  std::string overload = parts.size() > 4 && parts[4] != "default" ? parts[4] : "";
  auto op = torch::jit::findOperatorFor(c10::OperatorName(space + "::" + parts[3], overload));
  if (!op)
    Refuse("calls " + target + ", which this program does not know",
           space == "aten" ? "re-export with the torch that pipewright was built with"
                           : "operators defined in Python do not exist without Python: write it "
                             "with operators of torch, or register it in C++");
  Given given;
  size_t position = 0;
  for (const ExportJson& input : node.at("inputs")) {
    std::string name = input.value("name", std::string());
    if (name.empty() && position < op->schema().arguments().size())
      name = op->schema().arguments()[position].name();
    ++position;
    given[name] = &input.at("arg");
  }
  op = TakesBools(op, given);
  const c10::FunctionSchema& schema = op->schema();
  std::vector<Value*> inputs;
  bool fits = true;
  size_t used = 0;
  for (const c10::Argument& argument : schema.arguments()) {
    auto found = given.find(argument.name());
    if (found != given.end()) {
      ++used;
      Value* value = Argument(*found->second, &argument);
      if (!value) value = Plain(*found->second), fits = false;
      inputs.push_back(value);
    } else if (argument.default_value()) {
      inputs.push_back(Constant(*argument.default_value()));
      if (argument.default_value()->isNone()) inputs.back()->setType(c10::NoneType::get());
    } else {
      Refuse("lacks the argument \"" + argument.name() + "\" of " + target);
    }
  }
  if (used != given.size()) Refuse("has an argument that " + target + " does not take");
  if (space == "aten" && parts[3] == "full" && IsBool(*given.at("fill_value")))
    if (Value*& dtype = inputs.at(*schema.argumentIndexWithName("dtype"));
        dtype->type()->kind() == c10::TypeKind::NoneType)
      dtype = Constant(static_cast<int64_t>(at::kBool));  // otherwise full has the number's dtype
  const bool switched = autocast_ && space == "aten" && IsRecurrent(parts[3]);
  if (switched)
    SwitchAutocast(true);
  else if (autocast_)
    Autocast(schema.operator_name(), node, graph, inputs);
  c10::Symbol symbol = c10::Symbol::fromQualString(space + "::" + parts[3]);
  if (!fits && symbol == c10::Symbol::aten("mul_") && HasSixteenBits(inputs[0])) {
    inputs[1] = model_.graph->insert(c10::Symbol::aten("scalar_tensor"), {inputs[1]},
                                     {{"dtype", static_cast<int64_t>(at::kDouble)}});
    fits = true;
  }
  // torch.add(0.5, x, alpha=2) has no overload, and the one for torch.mul(0.7, x) swaps the
  // operands, which rounds differently in 16 bits.
  if (!fits && inputs[0]->type()->isSubtypeOf(*c10::NumberType::get()))
    fits = NumbersToTensors(schema, ResultDtype(node, graph), inputs);
  if (!fits) {  // a number where a tensor is expected needs another overload
    std::vector<torch::jit::NamedValue> positional, keyword;
    for (size_t i = 0; i < inputs.size(); ++i) {
      const c10::Argument& argument = schema.arguments()[i];
      if (!given.count(argument.name())) continue;
      if (argument.kwarg_only())
        keyword.emplace_back(argument.name(), inputs[i]);
      else
        positional.emplace_back(inputs[i]);
    }
    BindOutputs(node, graph, {model_.graph->insert(symbol, positional, keyword)});
    return;
  }
  Node* made =
      model_.graph->insertNode(model_.graph->create(symbol, inputs, schema.returns().size()));
  for (size_t i = 0; i < schema.returns().size(); ++i)
    made->outputs()[i]->setType(schema.returns()[i].type());
  if (switched) SwitchAutocast(false);
  BindOutputs(node, graph, made->outputs());
}

}  // namespace pipewright
