// Converts autocast regions of an export: the casts made by autocast become explicit.
#include <ATen/autocast_mode.h>
#include <ATen/core/dispatch/Dispatcher.h>

#include <set>

#include "base/error.h"
#include "compiler/import/export/export_graph.h"

namespace pipewright {

using torch::jit::Node;
using torch::jit::Value;
namespace prim = torch::jit::prim;

static bool RecordsTensorsOn(const ExportJson& graph, const std::string& device) {
  for (const auto& [name, meta] : graph.at("tensor_values").items())
    if (meta.at("device").at("type").get<std::string>() == device) return true;
  return false;
}

// Converts a torch.autocast(...) region to ordinary nodes with casts.
void ExportConverter::ConvertAutocastRegion(const ExportJson& node) {
  const ExportJson& inputs = node.at("inputs");
  auto argument = [&](size_t i) -> const ExportJson& { return inputs.at(i).at("arg"); };
  const std::string device = argument(0).at("as_string").get<std::string>();
  const bool enabled = argument(2).at("as_bool").get<bool>();
  const ExportJson& inner = GraphArgument(node, 4);
  if (enabled && argument(3).contains("as_none"))
    Refuse(
        "enters torch.autocast in an export made with strict=True, which does not record the "
        "dtypes that autocast gives",
        "export with strict=False");
  if (enabled && !RecordsTensorsOn(inner, device))
    Refuse(
        "enters torch.autocast(\"" + device + "\") without a tensor on that device",
        "enter torch.autocast(\"cpu\", dtype=...) for a model exported on the CPU: its casts are "
        "made on every device");
  const auto outer = autocast_;
  const auto outer_dtype = autocast_dtype_;
  std::vector<Value*> operands = Operands(node, 5);
  autocast_.reset();
  if (enabled) {
    const at::DeviceType type = c10::Device(device).type();
    autocast_ = at::autocast::get_autocast_dispatch_key_from_device_type(type);
    autocast_dtype_ = argument(1).contains("as_scalar_type")
                          ? ExportDtype(argument(1)["as_scalar_type"].get<int64_t>())
                          : at::autocast::get_autocast_dtype(type);
  }
  std::vector<Value*> outputs = Region(inner, operands);
  autocast_ = outer, autocast_dtype_ = outer_dtype;
  BindInlined(node, outputs);
}

static std::optional<at::ScalarType> RecordedDtype(const ExportJson& node,
                                                   const ExportJson& graph) {
  const ExportJson& outputs = node.at("outputs");
  if (outputs.empty()) return std::nullopt;
  const ExportJson* content = &outputs[0].begin().value();
  if (content->is_array()) content = content->empty() ? nullptr : &(*content)[0];
  if (!content || !content->is_object() || !content->contains("name")) return std::nullopt;
  const ExportJson& tensors = graph.at("tensor_values");
  auto found = tensors.find((*content)["name"].get<std::string>());
  if (found == tensors.end()) return std::nullopt;
  return ExportDtype(found->at("dtype").get<int64_t>());
}

Value* ExportConverter::Cast(Value* value, at::ScalarType dtype) {
  Value* made = model_.graph->insert(c10::aten::to, {value, Constant(static_cast<int64_t>(dtype))});
  made->setType(c10::TensorType::get());
  made->node()->i_(c10::Symbol::attr("autocast"), 1);  // not the model's own cast: --dtype
  ValueMeta meta = model_.TensorOf(value).value_or(ValueMeta());
  meta.dtype = dtype;
  model_.meta[Name(made, value->debugName() + "_" + DtypeText(dtype))] = meta;
  return made;
}

// Switches autocast on or off around an operator whose casts happen inside it.
void ExportConverter::SwitchAutocast(bool on) {
  std::vector<Value*> inputs = {model_.device()};
  if (on) inputs.push_back(Constant(static_cast<int64_t>(autocast_dtype_)));
  model_.graph->insertNode(model_.graph->create(
      c10::Symbol::fromQualString(on ? "pipewright::autocast_enter" : "pipewright::autocast_exit"),
      inputs, 0));
}

// An operator known to autocast takes its floating-point arguments in the recorded dtype of its
// result, whichever of autocast's lists it is on. The same holds for an operator composed of such
// operators if its result does not have the dtype that its arguments promote to.
void ExportConverter::Autocast(const c10::OperatorName& name, const ExportJson& node,
                               const ExportJson& graph, std::vector<Value*>& inputs) {
  auto op = c10::Dispatcher::singleton().findOp(name);
  if (!op) return;
  const std::string operation = name.name.substr(name.name.rfind(':') + 1);
  std::optional<at::ScalarType> wanted = RecordedDtype(node, graph);
  if (!wanted) return;
  const bool known = op->hasKernelForDispatchKey(*autocast_);
  if (at::isComplexType(*wanted))
    wanted = c10::toRealValueType(*wanted);
  else if (known && !at::isFloatingType(*wanted))
    wanted = at::kFloat;  // e.g. a rank; autocast computes this kind of operator in float
  if (!at::isFloatingType(*wanted) || *wanted == at::kDouble) return;

  std::vector<std::pair<Node*, size_t>> lists;  // arguments in lists
  std::vector<Value**> casts;
  std::optional<at::ScalarType> promoted;
  auto look = [&](Value* value) {
    if (!value->type()->isSubtypeOf(*c10::TensorType::get())) return false;
    const std::optional<ValueMeta> meta = model_.TensorOf(value);
    const auto dtype = meta ? std::optional(meta->dtype) : std::nullopt;
    if (!dtype || !at::isFloatingType(*dtype)) return false;
    promoted = promoted ? c10::promoteTypes(*promoted, *dtype) : *dtype;
    return *dtype != *wanted && *dtype != at::kDouble;
  };
  for (Value*& input : inputs) {
    if (look(input)) casts.push_back(&input);
    Node* list = input->node();
    if (list->kind() != prim::ListConstruct) continue;
    for (size_t k = 0; k < list->inputs().size(); ++k)
      if (look(list->input(k))) lists.emplace_back(list, k);
  }
  if (!known) {
    // A norm takes weights of another dtype than its input unchanged.
    bool norm = operation.find("_norm") != std::string::npos;
    bool composed =
        !norm && op->hasKernelForDispatchKey(c10::DispatchKey::CompositeImplicitAutograd);
    for (const c10::Argument& argument : op->schema().arguments())
      composed = composed && argument.name() != "dtype";
    if (!composed || !promoted || *promoted == *wanted) return;
  }
  for (Value** input : casts) *input = Cast(*input, *wanted);
  for (auto [list, k] : lists) {
    torch::jit::WithInsertPoint before(list);
    list->replaceInput(k, Cast(list->input(k), *wanted));
  }
}

}  // namespace pipewright
