// A part of export_graph.h: converts nodes that need more than their schema: arithmetic on sizes,
// assertions, regions, and some operators.
#include <torch/csrc/jit/ir/constants.h>

#include "base/error.h"
#include "compiler/import/export/export_graph.h"

namespace pipewright {

using torch::jit::Node;
using torch::jit::Value;

// Python functions on numbers and their names in TorchScript.
static const std::unordered_map<std::string, const char*> kScalarFunctions = {
    {"_operator.add", "aten::add"},
    {"_operator.sub", "aten::sub"},
    {"_operator.mul", "aten::mul"},
    {"_operator.neg", "aten::neg"},
    {"_operator.floordiv", "aten::floordiv"},
    {"_operator.truediv", "aten::div"},
    {"_operator.mod", "aten::remainder"},
    {"_operator.pow", "aten::pow"},
    {"_operator.lshift", "aten::__lshift__"},
    {"_operator.rshift", "aten::__rshift__"},
    {"_operator.gt", "aten::gt"},
    {"_operator.ge", "aten::ge"},
    {"_operator.lt", "aten::lt"},
    {"_operator.le", "aten::le"},
    {"_operator.eq", "aten::eq"},
    {"_operator.ne", "aten::ne"},
    {"_operator.and_", "aten::__and__"},
    {"_operator.or_", "aten::__or__"},
    {"_operator.not_", "aten::__not__"},
    {"_operator.abs", "prim::abs"},
    {"math.ceil", "aten::ceil"},
    {"math.floor", "aten::floor"},
    {"math.trunc", "aten::Int"},
    {"torch.sym_int", "aten::Int"},
    {"torch.sym_float", "aten::Float"},
    {"torch.sym_max", "prim::max"},
    {"torch.sym_min", "prim::min"},
    {"torch.sym_not", "aten::__not__"},
    {"torch._sym_sqrt", "aten::sqrt"},
    {"math.sqrt", "aten::sqrt"},
    {"torch.ops.aten.sym_size.int", "aten::size"},
    {"torch.ops.aten.sym_stride.int", "aten::stride"},
    {"torch.ops.aten.sym_numel.default", "aten::numel"},
    {"torch.ops.aten.sym_storage_offset.default", "aten::storage_offset"},
};

static bool Starts(const std::string& text, const char* prefix) {
  return text.rfind(prefix, 0) == 0;
}

// Computes `base` ** `exponent` of integers. TorchScript's result is a float; small powers become
// products, which are exact.
static Value* IntegerPower(torch::jit::Graph& graph, Value* base, Value* exponent) {
  auto power = torch::jit::constant_as<int64_t>(exponent);
  if (!power || *power < 1 || *power > 8)
    return graph.insert(c10::Symbol::aten("Int"), {graph.insert(c10::aten::pow, {base, exponent})});
  Value* out = base;
  for (int64_t k = 1; k < *power; ++k) out = graph.insert(c10::aten::mul, {out, base});
  return out;
}

// Converts torch.vmap in an export with strict=False: switches surround the operations of one
// sample.
void ExportConverter::ConvertPredispatch(const ExportJson& node, const ExportJson& graph) {
  const std::string target = node.at("target").get<std::string>();
  const std::string name = target.substr(target.rfind('.') + 1);
  if (name == "lazy_load_decompositions") return;
  auto argument = [&](size_t i) { return Plain(node.at("inputs").at(i).at("arg")); };
  auto made = [&](const char* op, const std::vector<Value*>& inputs, size_t outputs) {
    return model_.graph->insertNode(
        model_.graph->create(c10::Symbol::fromQualString(op), inputs, outputs));
  };
  if (name == "_vmap_increment_nesting") {
    made("pipewright::vmap_enter", {argument(0), argument(1)}, 0);
  } else if (name == "_vmap_decrement_nesting") {
    made("pipewright::vmap_exit", {}, 0);
  } else if (name == "_add_batch_dim") {
    BindOutputs(node, graph, made("pipewright::vmap_in", {argument(0), argument(1)}, 1)->outputs());
  } else if (name == "_remove_batch_dim") {
    std::vector<Value*> inputs = {argument(0), argument(2), argument(3)};
    BindOutputs(node, graph, made("pipewright::vmap_out", inputs, 1)->outputs());
  } else {
    Refuse("differentiates inside the model by torch.func (" + name + "), which is not supported",
           "write the derivative as operations, or leave it to the training");
  }
}

// Converts the operation that run_decompositions() makes of x[a:b] = y: PyTorch has no derivative
// of copy, but it has derivatives of the three operations inserted here.
void ExportConverter::ConvertCopy(const ExportJson& node, const ExportJson& graph) {
  Value *like = Plain(node.at("inputs").at(0).at("arg")),
        *from = Plain(node.at("inputs").at(1).at("arg"));
  const ValueMeta *like_meta = model_.MetaOf(like), *from_meta = model_.MetaOf(from);
  Value* wide = model_.graph->insert(c10::Symbol::aten("expand_as"), {from, like});
  Value* cast = model_.graph->insert(c10::Symbol::aten("type_as"), {wide, like});
  if (like_meta && from_meta) {
    const std::string name = node.at("outputs").at(0).at("as_tensor").at("name").get<std::string>();
    ValueMeta meta = *like_meta;
    cast->setDebugName(name + "_cast");
    model_.meta[cast->debugName()] = meta;
    meta.dtype = from_meta->dtype;
    wide->setDebugName(name + "_expanded");
    model_.meta[wide->debugName()] = meta;
  }
  BindOutputs(node, graph, {model_.graph->insert(c10::aten::clone, {cast})});
}

// Converts fma(a, b, c), into which a strict export turns addcmul_, addcdiv_ and add_ with a
// factor: PyTorch computes (a * b) + c, with two roundings.
void ExportConverter::ConvertFma(const ExportJson& node, const ExportJson& graph) {
  Value *a = Plain(node.at("inputs").at(0).at("arg")), *b = Plain(node["inputs"].at(1).at("arg")),
        *c = Plain(node["inputs"].at(2).at("arg"));
  Value* product = model_.graph->insert(c10::aten::mul, {a, b});
  Name(product, "product");
  Value* sum = model_.graph->insert(c10::aten::add, {product, c});
  BindOutputs(node, graph, {sum});
  const ValueMeta *given = model_.MetaOf(a), *made = model_.MetaOf(sum);
  if (!given || !made || given->dtype != made->dtype || given->shape != made->shape) return;
  ValueMeta meta = *made;  // all three have the same dtype and shape
  model_.meta[product->debugName()] = meta;
}

// Returns true for aliases that were detach in the model: run_decompositions() turns each detach
// into an alias, through which gradients would pass. "from_node" names the operators that a node
// was before (torch.fx.traceback.NodeSource). Throws Error if it is missing and may matter.
bool ExportConverter::WasDetach(const ExportJson& node, const ExportJson& graph) const {
  const ExportJson metadata = node.value("metadata", ExportJson::object());
  if (metadata.contains("from_node"))
    return metadata["from_node"].get_ref<const std::string&>().find("\"aten.detach") !=
           std::string::npos;
  const SourceLine line = OwnLine(metadata.value("stack_trace", ""));
  if (line.code.find("detach(") == std::string::npos) return false;
  for (const ExportJson& other : graph.at("nodes"))  // without run_decompositions(), they stay
    if (Starts(other.at("target").get<std::string>(), "torch.ops.aten.detach")) return false;
  throw Error(model_.file + ": " + line.file + ":" + std::to_string(line.number),
              "calls detach, and the export does not tell which operators it became: " + line.code,
              "export it again, without run_decompositions()");
}

bool ExportConverter::ConvertSpecial(const ExportJson& node, const ExportJson& graph) {
  const std::string target = node.at("target").get<std::string>();
  // The export's assertions about sizes hold for the recorded ranges, which the manifest keeps.
  if (Starts(target, "torch.ops.aten._assert_") || Starts(target, "torch.ops.aten.sym_constrain_"))
    return true;
  if (target == "torch.ops.higher_order.wrap_with_set_grad_enabled") {
    ConvertGradRegion(node);
    return true;
  }
  if (target == "torch.ops.higher_order.wrap_with_autocast")
    return ConvertAutocastRegion(node), true;
  if (target == "torch.ops.higher_order.cond") return ConvertCond(node, graph), true;
  if (target == "torch.ops.higher_order.while_loop") return ConvertWhile(node, graph), true;
  if (target == "torch.ops.higher_order.scan") return ConvertScan(node, graph), true;
  if (target == "torch.ops.higher_order.map_impl") return ConvertMap(node, graph), true;
  if (target == "torch.ops.higher_order.invoke_subgraph") return ConvertInline(node), true;
  if (Starts(target, "torch._functorch.predispatch.")) return ConvertPredispatch(node, graph), true;
  auto function = kScalarFunctions.find(target);
  if (function != kScalarFunctions.end()) {
    std::vector<torch::jit::NamedValue> arguments;
    for (const ExportJson& input : node.at("inputs"))
      arguments.emplace_back(Plain(input.at("arg")));
    const bool integer = node.at("outputs").at(0).contains("as_sym_int");
    Value* out =
        integer && target == "_operator.pow"
            ? IntegerPower(*model_.graph, Plain(node["inputs"].at(0).at("arg")),
                           Plain(node["inputs"].at(1).at("arg")))
            : model_.graph->insert(c10::Symbol::fromQualString(function->second), arguments);
    if (integer && out->type()->kind() == c10::TypeKind::FloatType)
      out = model_.graph->insert(c10::Symbol::aten("Int"), {out});
    BindOutputs(node, graph, {out});
    return true;
  }
  if (target == "torch.ops.aten.item.default" ||
      target == "torch.ops.aten._local_scalar_dense.default") {
    const std::string kind = node.at("outputs").at(0).begin().key();
    const char* cast = kind == "as_sym_float"  ? "aten::Float"
                       : kind == "as_sym_bool" ? "aten::Bool"
                                               : "aten::Int";
    Value* tensor = Plain(node.at("inputs").at(0).at("arg"));
    BindOutputs(node, graph, {model_.graph->insert(c10::Symbol::fromQualString(cast), {tensor})});
    return true;
  }
  if (target == "torch.ops.aten.alias.default" && WasDetach(node, graph)) {
    Value* from = Plain(node.at("inputs").at(0).at("arg"));
    BindOutputs(node, graph, {model_.graph->insert(c10::aten::detach, {from})});
    return true;
  }
  if (target == "torch.ops.aten.copy.default") return ConvertCopy(node, graph), true;
  if (target == "torch.ops.prims.fma.default") return ConvertFma(node, graph), true;
  if (target == "torch.sym_ite") {
    std::vector<Value*> values;
    for (const ExportJson& input : node.at("inputs")) values.push_back(Plain(input.at("arg")));
    Node* choice = model_.graph->insertNode(model_.graph->create(torch::jit::prim::If, 1));
    choice->addInput(values.at(0));
    for (int branch = 1; branch <= 2; ++branch)
      choice->addBlock()->registerOutput(values.at(branch));
    choice->output()->setType(values[1]->type());
    BindOutputs(node, graph, {choice->output()});
    return true;
  }
  return false;
}

}  // namespace pipewright
