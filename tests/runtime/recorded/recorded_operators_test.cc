// Calls every operator that lists may hold in a module of its own, with arguments made up by the
// types of its schema: its tensors are, in turn, inputs, weights, buffers, values that the module
// computes and constants, in lists, too. The module runs with autograd and as lists on tensors that
// differ in every element.
#include <ATen/Parallel.h>
#include <malloc.h>
#include <torch/csrc/jit/runtime/operator.h>

#include <cstdio>
#include <map>

#include "runtime/recorded/bit_compare.h"
#include "runtime/recorded/operators.h"
#include "tests/made_up_calls.h"
#include "tests/runtime/recorded_cases.h"

namespace pipewright {
namespace {

using c10::IValue;
using c10::TypeKind;
using torch::jit::Graph;
using torch::jit::Node;
using torch::jit::Value;

// Fills uninitialized memory, so that it is the same in both bodies.
constexpr int kByte = 0x55;

// Replaces `t` in TorchScript's schemas by a tensor.
c10::TypePtr WithoutVariables(const c10::TypePtr& type) {
  if (type->kind() == TypeKind::VarType) return c10::TensorType::get();
  std::vector<c10::TypePtr> inner;
  for (const c10::TypePtr& part : type->containedTypes()) inner.push_back(WithoutVariables(part));
  return inner.empty() ? type : type->withContained(inner);
}

// Returns a tensor that differs from `x` in every element, with the same layout. Integers stay 0 or
// 1.
at::Tensor Other(const at::Tensor& x) {
  at::NoGradGuard no_grad;
  const at::Tensor other = x.clone();
  if (x.scalar_type() == at::kBool) return other.logical_not_();
  if (at::isIntegralType(x.scalar_type(), false)) return other.neg_().add_(1);
  return other.neg_().add_(1.28125);
}

// A module that makes one call.
struct CallModule {
  std::shared_ptr<Graph> graph = std::make_shared<Graph>();
  torch::jit::Module script{"m"};
  Value* self = graph->addInput("self");
  Tensors weights, inputs;
  unsigned turn;

  explicit CallModule(unsigned turn) : turn(turn) { self->setType(script.type()); }

  Value* Input(const at::Tensor& tensor) {
    inputs.push_back(tensor);
    Value* input = graph->addInput();
    input->setType(c10::TensorType::get());
    return input;
  }
  Value* Weight(const at::Tensor& tensor, bool trained) {
    const std::string name = "w" + std::to_string(weights.size());
    weights.push_back(tensor.detach().clone().set_requires_grad(trained));
    if (trained)
      script.register_parameter(name, weights.back(), false);
    else
      script.register_buffer(name, weights.back());
    return graph->insertGetAttr(self, name);
  }
  Value* Tensor(const at::Tensor& tensor, bool written) {
    Value* value = nullptr;
    const unsigned kind = turn++ % 5;
    if (kind == 1 && (tensor.is_floating_point() || tensor.is_complex()))
      value = Weight(tensor, true);
    else if (kind == 2)
      value = Weight(tensor, false);
    else if (kind == 3)
      value = graph->insertConstant(tensor.clone());
    else
      value = Input(tensor);
    return written || kind == 4 ? graph->insert(c10::aten::clone, {value}) : value;
  }
  // Returns what represents `value` in the graph.
  Value* Of(const IValue& value, const c10::TypePtr& type, bool written) {
    if (value.isTensor() && value.toTensor().defined()) return Tensor(value.toTensor(), written);
    // The runtime provides the random generator.
    if (value.isNone() || value.isTensor() || value.isGenerator())
      return graph->insertConstant(IValue());
    if (!HoldsTensors(type)) return graph->insertConstant(value);
    if (type->kind() == TypeKind::OptionalType)
      return Of(value, type->containedTypes()[0], written);
    if (!value.isList()) throw std::invalid_argument(type->str());
    const c10::TypePtr element = WithoutVariables(type->containedTypes()[0]);
    std::vector<Value*> items;
    for (const IValue& item : value.toListRef()) items.push_back(Of(item, element, written));
    return graph->insertNode(graph->createList(element, items))->output();
  }
  // Makes `found`, the result of the call, an output of the module.
  void Output(Value* output, const IValue& found) {
    if (!found.isTensorList()) {
      graph->registerOutput(output);
      return;
    }
    Node* unpack = graph->createListUnpack(output, found.toListRef().size());
    for (Value* item : graph->insertNode(unpack)->outputs()) graph->registerOutput(item);
  }
};

bool Holds(const Graph& graph, const torch::jit::Operator& op) {
  for (const Node* node : graph.nodes())
    if (const torch::jit::Operator* found = node->maybeOperator();
        found && found->schema() == op.schema())
      return true;
  return false;
}

// Throws if these arguments do not fit.
CallModule ModuleOf(const torch::jit::Operator& op, unsigned attempt) {
  const c10::FunctionSchema& schema = op.schema();
  torch::jit::Stack given, stack;
  MadeUpArguments arguments(attempt);
  for (const c10::Argument& argument : schema.arguments())
    given.push_back(arguments.Of(schema, argument));
  for (const IValue& value : given) stack.push_back(value.deepcopy());
  op.getOperation()(stack);

  CallModule module(attempt);
  Graph& graph = *module.graph;
  std::vector<Value*> operands, written;
  for (size_t i = 0; i < given.size(); ++i) {
    const c10::Argument& argument = schema.arguments()[i];
    const bool writes = argument.alias_info() && argument.alias_info()->isWrite();
    operands.push_back(module.Of(given[i], argument.type(), writes));
    if (writes && given[i].isTensor()) written.push_back(operands.back());
  }
  const auto& returns = schema.returns();
  Node* call = graph.create(c10::Symbol::fromQualString(schema.name()), operands, returns.size());
  graph.insertNode(call);
  for (size_t i = 0; i < returns.size(); ++i)
    call->outputs()[i]->setType(WithoutVariables(returns[i].type()));
  for (size_t i = 0; i < returns.size(); ++i) module.Output(call->outputs()[i], stack[i]);
  for (Value* value : written) graph.registerOutput(value);
  // Adds an output that passes a gradient, whatever the call returns.
  graph.registerOutput(graph.insert(
      c10::aten::mul, {module.Input(at::rand({2})), module.Weight(at::rand({2}), true)}));
  if (!Holds(graph, op)) throw std::invalid_argument("another overload");
  return module;
}

// Returns true if the refusal means that the lists computed something else.
bool IsFault(const std::string& refusal) {
  // Autograd's body occasionally fails on made-up numbers (a division by zero).
  if (refusal.starts_with("it fails"))
    return refusal.find("failed in the TorchScript interpreter") == std::string::npos;
  return refusal.starts_with("other ") || refusal.starts_with("another ");
}

std::string DifferenceOf(const Result& a, const Result& b) {
  std::string other = Difference(a.outputs, b.outputs, "output");
  if (other.empty() && a.numbers != b.numbers) other = "other numbers";
  if (other.empty()) other = Difference(a.inputs, b.inputs, "gradient of input", false);
  if (other.empty()) other = Difference(a.weights, b.weights, "gradient of weight", false);
  if (other.empty()) other = Difference(a.buffers, b.buffers, "buffer");
  return other;
}

// Runs the module with both bodies; reports "same", "refused: WHY" or "wrong: WHAT". Throws if
// autograd's body does.
void TryModule(const std::function<LoadedModule()>& make, const Tensors& given,
               const Tell& tell) {
  LoadedModule eager = make(), lists = make();
  lists.recorded = std::make_shared<RecordedBodies>();
  lists.recorded->always = lists.recorded->now = true;
  lists.recorded->spot_checks = false;
  Tensors inputs[2] = {given}, weights[2];
  for (const at::Tensor& input : given) inputs[1].push_back(Other(input));
  for (const at::Tensor& weight : eager.weights) {
    weights[0].push_back(weight.detach().clone());
    weights[1].push_back(Other(weight.detach()));
  }
  auto run = [&](const LoadedModule& module, size_t data, uint64_t microbatch) {
    {
      at::NoGradGuard no_grad;
      for (size_t w = 0; w < weights[data].size(); ++w) module.weights[w].copy_(weights[data][w]);
    }
    return RunOne(module, inputs[data], microbatch, microbatch % 2);
  };
  // Some kernels read beyond tensors whose sizes or types do not fit each other: their results
  // change with the memory around the tensors.
  auto depends_on_memory = [&](const Result& expected, size_t data, uint64_t microbatch) {
    bool other = false;
    for (int byte : {0x11, 0x3f, 0xee}) {
      mallopt(M_PERTURB, byte);  // fills memory when it is allocated and when it is freed
      Tensors around;
      for (at::Tensor& input : inputs[data]) {
        around.push_back(at::full({8}, byte));
        input = input.clone();
      }
      other = other || !DifferenceOf(run(make(), data, microbatch), expected).empty();
    }
    mallopt(M_PERTURB, kByte);
    return other;
  };
  uint64_t microbatch = 0;
  for (size_t data : {0, 0, 0, 1, 1, 1, 0, 1}) {
    const Result expected = run(eager, data, microbatch), found = run(lists, data, microbatch);
    if (const std::string other = DifferenceOf(found, expected); !other.empty()) {
      if (depends_on_memory(expected, data, microbatch))
        throw std::invalid_argument("the result depends on the memory around the arguments");
      return tell("wrong: " + other);
    }
    ++microbatch;
    const RecordedBody& body = *lists.recorded->bodies.at(0);
    if (body.state == RecordedBody::State::kRefused)
      return tell((IsFault(body.refusal) ? "wrong: " : "refused: ") + body.refusal);
  }
  const RecordedBody& body = *lists.recorded->bodies.at(0);
  tell(lists.recorded->bodies.size() == 1 && body.state == RecordedBody::State::kUsed
           ? "same"
           : "wrong: the lists do not run");
}

LoadedModule Loaded(const CallModule& call) {
  LoadedModule module;
  torch::jit::Module script = call.script.copy();
  for (size_t w = 0; w < call.weights.size(); ++w) {
    const at::Tensor& weight = call.weights[w];
    module.weights.push_back(weight.detach().clone().set_requires_grad(weight.requires_grad()));
    script.setattr("w" + std::to_string(w), module.weights.back());
  }
  module.self = script._ivalue();
  module.code = std::make_unique<torch::jit::Code>(call.graph, "call");
  return module;
}

// Returns true if the operator may be in lists.
bool MayBeRecorded(const c10::FunctionSchema& schema) {
  Graph graph;
  std::vector<Value*> inputs;
  for (const c10::Argument& argument : schema.arguments()) {
    inputs.push_back(graph.addInput());
    inputs.back()->setType(argument.type());
  }
  Node* node = graph.create(c10::Symbol::fromQualString(schema.name()), inputs,
                            schema.returns().size());
  graph.insertNode(node);
  for (size_t i = 0; i < schema.returns().size(); ++i)
    node->outputs()[i]->setType(schema.returns()[i].type());
  // If another overload takes the same arguments, graphs contain that one.
  const c10::FunctionSchema* found = node->maybeSchema();
  if (found && found->operator_name() != schema.operator_name()) return false;
  return IsRecordable(*node);
}


// Operators that are not tried, because made-up arguments do not reach them or are meaningless.
using Names = std::set<std::string>;
const std::map<std::string, Names>& Untried() {
  static const std::map<std::string, Names> kNames = {
      {"sparse, nested or quantized tensors, which recordings refuse",
       {"aten::_coalesced", "aten::_convert_indices_from_csr_to_coo",
        "aten::_convert_weight_to_int4pack_for_cpu", "aten::_dyn_quant_matmul_4bit",
        "aten::_dyn_quant_pack_4bit_weight", "aten::_efficientzerotensor",
        "aten::_empty_affine_quantized", "aten::_empty_per_channel_affine_quantized",
        "aten::_indices_copy", "aten::_nested_compute_contiguous_strides_offsets",
        "aten::_nested_from_padded", "aten::_nested_get_values_copy",
        "aten::_nested_tensor_from_mask", "aten::_nested_tensor_from_tensor_list",
        "aten::_nested_view_from_buffer", "aten::_nested_view_from_buffer_copy",
        "aten::_nested_view_from_jagged_copy", "aten::_scaled_mm", "aten::_scaled_mm_v2",
        "aten::_sparse_broadcast_to_copy", "aten::_sparse_compressed_tensor_with_dims",
        "aten::_sparse_sum.dim", "aten::_spdiags", "aten::_to_sparse",
        "aten::_to_sparse.sparse_dim", "aten::_to_sparse_bsc", "aten::_to_sparse_bsr",
        "aten::_to_sparse_csc", "aten::_to_sparse_csr",
        "aten::_validate_compressed_sparse_indices", "aten::_values_copy",
        "aten::_weight_int4pack_mm_for_cpu", "aten::_weight_int8pack_mm", "aten::ccol_indices",
        "aten::ccol_indices_copy", "aten::col_indices", "aten::col_indices_copy",
        "aten::copy_sparse_to_sparse", "aten::crow_indices", "aten::crow_indices_copy",
        "aten::fake_quantize_per_channel_affine_cachemask", "aten::indices", "aten::indices_copy",
        "aten::is_coalesced", "aten::quantize_per_channel", "aten::quantize_per_tensor",
        "aten::quantize_per_tensor.tensor_qparams", "aten::quantize_per_tensor.tensors",
        "aten::quantize_per_tensor_dynamic", "aten::quantized_gru.data",
        "aten::quantized_gru.data_legacy", "aten::quantized_gru.input",
        "aten::quantized_gru.input_legacy", "aten::quantized_lstm.data",
        "aten::quantized_lstm.data_legacy", "aten::quantized_lstm.input",
        "aten::quantized_lstm.input_legacy", "aten::resize_as_sparse", "aten::row_indices",
        "aten::row_indices_copy", "aten::sparse_compressed_tensor.comp_plain_value",
        "aten::sparse_compressed_tensor.comp_plain_value_size", "aten::sparse_coo_tensor.size",
        "aten::sparse_resize", "aten::sparse_resize_and_clear", "aten::to_mkldnn", "aten::values",
        "aten::values_copy"}},
      {"of another device, or of a library that other operators call",
       {"aten::_grouped_mm", "aten::_nnpack_spatial_convolution", "aten::_philox_normal",
        "aten::_philox_uniform", "aten::_pin_memory",
        "aten::_scaled_dot_product_fused_attention_overrideable",
        "aten::_scaled_dot_product_fused_attention_overrideable_backward",
        "aten::convolution_backward_overrideable", "aten::convolution_overrideable",
        "aten::mkldnn_rnn_layer", "aten::mkldnn_rnn_layer_backward"}},
      {"called by autograd, and so by calls of the operator whose derivative they are",
       {"aten::_cdist_backward", "aten::_cholesky_solve_helper", "aten::_ctc_loss_backward",
        "aten::_ctc_loss_backward.Tensor", "aten::_dirichlet_grad",
        "aten::_embedding_bag_per_sample_weights_backward",
        "aten::_fake_quantize_learnable_per_channel_affine_backward",
        "aten::_fake_quantize_learnable_per_tensor_affine_backward", "aten::_fw_primal_copy",
        "aten::_log_softmax_backward_data", "aten::_make_dual", "aten::_make_dual_copy",
        "aten::_masked_softmax_backward",
        "aten::_scaled_dot_product_flash_attention_for_cpu_backward",
        "aten::_segment_reduce_backward", "aten::_slow_conv2d_backward.output_mask",
        "aten::_softmax_backward_data", "aten::_weight_norm_interface_backward",
        "aten::batch_norm_backward", "aten::diagonal_backward", "aten::glu_jvp",
        "aten::grid_sampler_2d_backward", "aten::grid_sampler_3d_backward",
        "aten::max_pool3d_with_indices_backward", "aten::multi_margin_loss_backward",
        "aten::multilabel_margin_loss_backward", "aten::native_batch_norm_backward",
        "aten::native_group_norm_backward", "aten::native_layer_norm_backward",
        "aten::nll_loss2d_backward", "aten::nll_loss_backward"}},
      {"of optimizers, which no module calls",
       {"aten::_amp_foreach_non_finite_check_and_unscale", "aten::_amp_update_scale",
        "aten::_amp_update_scale_", "aten::_foreach_addcdiv.Tensor", "aten::_fused_adagrad",
        "aten::_fused_adagrad.tensor_lr", "aten::_fused_adam", "aten::_fused_adam.tensor_lr",
        "aten::_fused_adamw", "aten::_fused_adamw.tensor_lr", "aten::_fused_sgd",
        "aten::_fused_sgd.tensor_lr", "aten::_fused_sgd_"}},
      {"memory that nothing fills",
       {"aten::_make_dep_token", "aten::_resize_output", "aten::empty.memory_format",
        "aten::empty_like", "aten::empty_permuted", "aten::empty_strided", "aten::new_empty",
        "aten::new_empty_strided", "aten::resize", "aten::resize_", "aten::resize_as",
        "aten::resize_as_", "aten::set.source_Storage", "aten::set.source_Storage_storage_offset",
        "aten::set_.source_Storage", "aten::set_.source_Storage_storage_offset"}},
      {"parts of other operators, which trust the sizes that they are given",
       {"aten::_cummax_helper", "aten::_cummin_helper"}},
      {"lengths or offsets that must fit the data, which made-up ones seldom do: memory beyond it is "
       "read",
       {"aten::_ctc_loss.Tensor", "aten::_jagged_to_padded_dense_forward",
        "aten::_padded_dense_to_jagged_forward"}},
      {"without a derivative, and of evaluation alone",
       {"aten::_batch_norm_no_update", "aten::_native_multi_head_attention",
        "aten::_transform_bias_rescale_qkv", "aten::_transformer_encoder_layer_fwd",
        "aten::linalg_ldl_solve"}},
      {"in regions of several operators, which the compiler makes",
       {"pipewright::vmap_in"}},
  };
  return kNames;
}

// Returns cases that need other operators before them, or certain numbers.
std::vector<Case> ByHand() {
  const std::string f = "def forward(self, x, y):\n";
  return {
      {"dictionaries",
       f + "  d = {'a': x * self.w0, 'b': self.w1 + x}\n"
           "  d['c'] = y + d['b']\n"
           "  e = dict(d.copy())\n"
           "  g = torch.stack(list(e.values())).sum() + e['a'] * e.items()[1][1]\n"
           "  g = g + d.pop('a') + d.pop('q', x)\n"
           "  g = g + float(len(d)) + float('b' in d) + float(len(d.keys()))\n"
           "  d.clear()\n"
           "  return g * float(len(d) + 1)\n",
       {Trained({3}), at::rand({3})},
       Batches({{2, 3}, {2, 3}})},
      {"norms",
       f + "  x = torch.native_group_norm(x, self.w0, self.w1, 2, 4, 3, 2, 1e-5)[0]\n"
           "  x = x + torch.native_batch_norm(y, self.w0, self.w1, self.w2, self.w3, True, 0.1,"
           " 1e-5)[0]\n"
           "  x = x * torch._weight_norm(self.w4, self.w5, 0)\n"
           "  return x * torch._weight_norm_interface(self.w4, self.w5, 0)[0]\n",
       {Trained({4}), Trained({4}), at::zeros({4}), at::ones({4}), Trained({2, 4, 3}),
        Trained({2, 1, 1})},
       Batches({{2, 4, 3}, {2, 4, 3}})},
      {"a convolution",
       f + "  return torch.conv_tbc(x, self.w0, y)\n",
       {Trained({2, 4, 5})},
       Batches({{3, 2, 4}, {5}}),
       "backward that writes in place, aten::addmm_"},
      {"a grid",
       f + "  return torch.affine_grid_generator(x * self.w0, [2, 1, 2, 2], False) + y\n",
       {Trained({3})},
       Batches({{2, 2, 3}, {2}}),
       "memory that something else has written to"},
      {"a spectrum",
       f + "  return torch.stft(x * self.w0, 4, 2, 4, y, True, 'reflect', False, True, False)\n",
       {Trained({6})},
       Batches({{2, 6}, {4}}),
       "a tensor that no recorded operation made"},
      {"a histogram",
       f + "  h = torch._histogramdd_from_bin_tensors(y.detach().view([-1, 1]), "
           "[torch.arange(3.)])\n"
           "  p = torch.arange(1, 3, dtype=3)\n"
           "  return h * torch.linalg_lu_solve(x * self.w0, p, x).sum()\n",
       {Trained({2})},
       Batches({{2, 2}, {6}})},
      {"a product of groups",
       f + "  o = torch.arange(1, 4, 2, dtype=3)\n"
           "  return torch._grouped_mm(x, self.w0, o) + torch._int_mm(x.to(1), y.to(1)).sum()\n",
       {Trained({2, 4, 4})},
       Batches({{3, 4}, {4, 4}})},
      {"rows of many lengths",
       f + "  o = torch.arange(0, 6, 2)\n"
           "  j = torch._padded_dense_to_jagged_forward(x.detach(), [o], 4) * y.detach()\n"
           "  return x * self.w0 + torch._jagged_to_padded_dense_forward(j, [o], [3], 0.5)\n",
       {Trained({2, 3, 4})},
       Batches({{2, 3, 4}, {4, 4}})},
      // With sizes or types that do not fit, these kernels would read and write beyond the tensors.
      {"samples of an image",
       f + "  return torch.grid_sampler_2d(x * self.w0, y, 0, 0, False)\n",
       {Trained({3})},
       Batches({{2, 4, 3, 3}, {2, 3, 3, 2}})},
      {"samples of a volume",
       f + "  return torch.grid_sampler_3d(x * self.w0, y, 0, 0, False)\n",
       {Trained({3})},
       Batches({{2, 4, 2, 3, 3}, {2, 2, 3, 3, 3}})},
      {"a combination of rows",
       f + "  return x * self.w0 + torch._compute_linear_combination(x.detach(), y.detach())\n",
       {Trained({3})},
       Batches({{4, 3}, {4, 4}})},
      // With lengths that do not fit the data, the kernel would read beyond it.
      {"labels of sequences",
       f + "  n, a = torch._ctc_loss(torch.log_softmax(x * self.w0, 2), torch.arange(1, 4), [4, 3],"
           " [2, 1], 0, False)\n"
           "  return n * y\n",
       {Trained({5})},
       Batches({{4, 2, 5}, {2}}),
       "sizes that depend on the data, aten::_ctc_loss"},
  };
}

bool Holds(const c10::TypePtr& type, TypeKind kind) {
  if (type->kind() == kind) return true;
  for (const c10::TypePtr& inner : type->containedTypes())
    if (Holds(inner, kind)) return true;
  return false;
}

// Returns true if an argument or result is of this kind, or a list of it.
bool Concerns(const c10::FunctionSchema& schema, TypeKind kind) {
  for (const auto* side : {&schema.arguments(), &schema.returns()})
    for (const c10::Argument& argument : *side)
      if (Holds(argument.type(), kind)) return true;
  return false;
}

// Returns overloads; those on dictionaries, which exist for every type of key, by operator name.
Names CalledByHand() {
  Names called;
  for (const Case& c : ByHand()) {
    const LoadedModule module = Make(c, false);
    for (const Node* node : module.code->graph()->nodes())
      if (const c10::FunctionSchema* schema = node->maybeSchema())
        called.insert(Concerns(*schema, TypeKind::DictType)
                          ? schema->name()
                          : c10::toString(schema->operator_name()));
  }
  return called;
}

TEST(RecordedOperators, HaveTheBitsOfAutogradOrRefuse) {
  mallopt(M_PERTURB, kByte);
  at::set_num_threads(1);
  CurrentRandomKey();  // registers ours
  RegisterTransformersOperators();
  const Names by_hand = CalledByHand();
  Names untried;
  for (const auto& [why, names] : Untried()) untried.insert(names.begin(), names.end());
  const size_t not_tried = untried.size();
  int same = 0, refused = 0;
  for (const auto& op : torch::jit::getAllOperators()) {
    const c10::FunctionSchema& schema = op->schema();
    const std::string name = c10::toString(schema.operator_name());
    if (!Concerns(schema, TypeKind::TensorType) && !Concerns(schema, TypeKind::VarType)) continue;
    if (!MayBeRecorded(schema) || untried.erase(name) || by_hand.count(name)) continue;
    if (Concerns(schema, TypeKind::DictType) && by_hand.count(schema.name())) continue;
    const Names told = RunApart(600, [&, tried = 0](unsigned attempt, const Tell& tell) mutable {
      const CallModule call = ModuleOf(*op, attempt);  // throws if these arguments do not fit
      TryModule([&] { return Loaded(call); }, call.inputs, tell);
      return ++tried < 8;
    });
    for (const std::string& line : told)
      EXPECT_FALSE(line.starts_with("wrong")) << schema << "\n" << line;
    EXPECT_FALSE(told.empty()) << schema << "\nno made-up call of it works: call it by hand";
    (told.count("same") ? same : refused) += !told.empty();
  }
  for (const std::string& name : untried) ADD_FAILURE() << name << " is no operator of lists";
  std::printf("%d operators as by autograd, %d always refused, %zu not tried, %zu by hand\n", same,
              refused, not_tried, by_hand.size());
  EXPECT_GT(same, 4 * refused);
}

TEST(RecordedOperators, ByHand) {
  for (const Case& c : ByHand()) {
    std::string why = "nothing";
    TryModule([&] { return Make(c, false); }, c.inputs[0],
              [&](const std::string& line) { why = line; });
    EXPECT_EQ(why, c.refusal.empty() ? "same" : "refused: " + c.refusal) << c.name;
  }
}

}  // namespace
}  // namespace pipewright
