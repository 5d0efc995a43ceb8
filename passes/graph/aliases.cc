#include "passes/graph/aliases.h"

#include <ATen/core/dispatch/Dispatcher.h>

#include <algorithm>
#include <map>
#include <set>
#include <string>

#include "ops/transformers_ops.h"

namespace pipewright {

namespace {

struct Argument {
  size_t index;
  bool alone = false;  // returns a single element of a list
};

// Operators whose schemas promise new memory but that sometimes return their input.
// tests/passes/aliases_test.cc calls every operator to find them.
const std::multimap<std::string, Argument>& Undeclared() {
  static const std::multimap<std::string, Argument> kArguments = {
      {"aten::_cast_Byte", {0}},
      {"aten::_cast_Char", {0}},
      {"aten::_cast_Double", {0}},
      {"aten::_cast_Float", {0}},
      {"aten::_cast_Half", {0}},
      {"aten::_cast_Int", {0}},
      {"aten::_cast_Long", {0}},
      {"aten::_cast_Short", {0}},
      {"aten::_convolution_double_backward", {2}},
      {"aten::_foobar", {0}},
      {"aten::_lazy_clone", {0}},
      {"aten::_nested_compute_contiguous_strides_offsets", {0}},
      {"aten::_reshape_from_tensor", {0}},
      {"aten::_pack_sequence", {0}},
      {"aten::_pack_sequence", {1}},
      {"aten::_pack_sequence", {2}},
      {"aten::_pack_sequence", {3}},
      {"aten::_remove_batch_dim", {0}},
      {"aten::_saturate_weight_to_fp16", {0}},
      {"aten::_test_optional_filled_intlist", {0}},
      {"aten::_test_optional_floatlist", {0}},
      {"aten::_test_optional_intlist", {0}},
      {"aten::_test_parallel_materialize", {0}},
      {"aten::_test_string_default", {0}},
      {"aten::_to_cpu", {0}},
      {"aten::_unsafe_view", {0}},
      {"aten::alpha_dropout", {0}},
      {"aten::atleast_1d", {0}},
      {"aten::atleast_2d", {0}},
      {"aten::atleast_3d", {0}},
      {"aten::broadcast_tensors", {0}},
      {"aten::cartesian_prod", {0, true}},
      {"aten::conj_physical", {0}},
      {"aten::cumprod_backward", {0}},
      {"aten::data", {0}},
      {"aten::dequantize", {0}},
      {"aten::dropout", {0}},
      {"aten::einsum", {1, true}},
      {"aten::feature_alpha_dropout", {0}},
      {"aten::feature_dropout", {0}},
      {"aten::flatten_dense_tensors", {0, true}},
      {"aten::lift", {0}},
      {"aten::meshgrid", {0}},
      {"aten::set", {1}},
      {"aten::sum_to_size", {0}},
      {"aten::to_dense", {0}},
      {"aten::to_dense_backward", {0}},
      {"aten::to_mkldnn_backward", {0}},
      {"aten::to_sparse", {0}},
      {"aten::type_as", {0}},
      {"aten::unflatten_dense_tensors", {0}},
      {"aten::unsafe_chunk", {0}},
      {"aten::unsafe_split", {0}},
      {"aten::unsafe_split_with_sizes", {0}},
      {"pipewright::alpha_dropout", {0}},
      {"pipewright::dropout", {0}},
      {"pipewright::feature_alpha_dropout", {0}},
      {"pipewright::feature_dropout", {0}},
      {"pipewright::native_dropout", {0}},
  };
  return kArguments;
}

// Operators that write to arguments that their schemas do not mark as written.
const std::multimap<std::string, size_t>& UndeclaredWrites() {
  static const std::multimap<std::string, size_t> kArguments = {
      {"aten::_batch_norm_impl_index", 3},   {"aten::_batch_norm_impl_index", 4},
      {"aten::_no_grad_embedding_renorm_", 0}, {"aten::batch_norm_update_stats", 1},
      {"aten::batch_norm_update_stats", 2},  {"aten::cov", 0},
      {"aten::native_batch_norm", 3},        {"aten::native_batch_norm", 4},
  };
  return kArguments;
}

// Operators that the test cannot call: they need another device, layout or kind of number.
const std::set<std::string>& NeverCalled() {
  static const std::set<std::string> kNames = {
      "aten::_amp_update_scale", "aten::_batch_norm_impl_index_backward",
      "aten::_batch_norm_no_update", "aten::_cholesky_solve_helper", "aten::_coalesce",
      "aten::_coalesced", "aten::_conv_depthwise2d", "aten::_convert_indices_from_csr_to_coo",
      "aten::_convert_weight_to_int4pack", "aten::_convert_weight_to_int4pack_for_cpu",
      "aten::_copy_from", "aten::_copy_from_and_resize", "aten::_cslt_compress",
      "aten::_cslt_sparse_mm", "aten::_ctc_loss.Tensor", "aten::_ctc_loss_backward",
      "aten::_ctc_loss_backward.Tensor", "aten::_cudnn_attention_backward",
      "aten::_cudnn_attention_forward", "aten::_cudnn_ctc_loss", "aten::_cudnn_ctc_loss.Tensor",
      "aten::_cudnn_rnn",
      "aten::_cudnn_rnn_backward", "aten::_cudnn_rnn_flatten_weight",
      "aten::_dyn_quant_matmul_4bit", "aten::_dyn_quant_pack_4bit_weight",
      "aten::_efficient_attention_backward", "aten::_efficient_attention_forward",
      "aten::_embedding_bag", "aten::_embedding_bag_forward_only",
      "aten::_embedding_bag_per_sample_weights_backward",
      "aten::_empty_per_channel_affine_quantized", "aten::_flash_attention_backward",
      "aten::_flash_attention_forward", "aten::_flash_attention_forward.quantized",
      "aten::_fused_dropout", "aten::_fused_rms_norm_backward", "aten::_fw_primal_copy",
      "aten::_grouped_mm", "aten::_indices_copy", "aten::_int_mm", "aten::_lstm_mps",
      "aten::_make_dual", "aten::_make_dual_copy", "aten::_masked_scale",
      "aten::_masked_softmax_backward", "aten::_mixed_dtypes_linear", "aten::_mkldnn_reshape",
      "aten::_mkldnn_transpose", "aten::_mps_convolution", "aten::_mps_convolution_transpose",
      "aten::_native_multi_head_attention", "aten::_nested_from_padded_and_nested_example",
      "aten::_nested_from_padded_tensor", "aten::_nested_get_jagged_dummy",
      "aten::_nested_get_lengths", "aten::_nested_get_max_seqlen", "aten::_nested_get_min_seqlen",
      "aten::_nested_get_offsets", "aten::_nested_get_values_copy",
      "aten::_nested_select_backward", "aten::_nested_sum_backward",
      "aten::_nested_tensor_from_mask", "aten::_nested_tensor_size",
      "aten::_nested_tensor_softmax_with_shape", "aten::_nested_tensor_storage_offsets",
      "aten::_nested_tensor_strides", "aten::_nested_view_from_buffer",
      "aten::_nested_view_from_buffer_copy", "aten::_nested_view_from_jagged",
      "aten::_nested_view_from_jagged_copy", "aten::_nnpack_spatial_convolution",
      "aten::_pack_padded_sequence_backward", "aten::_pad_packed_sequence",
      "aten::_philox_key_fold_in", "aten::_philox_key_split", "aten::_philox_normal",
      "aten::_philox_uniform", "aten::_pin_memory", "aten::_resize_output", "aten::_rowwise_prune",
      "aten::_scaled_dot_product_attention_math_for_mps",
      "aten::_scaled_dot_product_cudnn_attention",
      "aten::_scaled_dot_product_cudnn_attention_backward",
      "aten::_scaled_dot_product_efficient_attention",
      "aten::_scaled_dot_product_efficient_attention_backward",
      "aten::_scaled_dot_product_flash_attention",
      "aten::_scaled_dot_product_flash_attention.quantized",
      "aten::_scaled_dot_product_flash_attention_backward",
      "aten::_scaled_dot_product_fused_attention_overrideable",
      "aten::_scaled_dot_product_fused_attention_overrideable_backward",
      "aten::_scaled_grouped_mm", "aten::_scaled_grouped_mm_v2", "aten::_scaled_mm",
      "aten::_scaled_mm_v2", "aten::_sparse_broadcast_to_copy",
      "aten::_sparse_compressed_tensor_unsafe", "aten::_sparse_coo_tensor_with_dims_and_tensors",
      "aten::_sparse_csr_prod.dim_dtype", "aten::_sparse_csr_sum.dim_dtype",
      "aten::_sparse_log_softmax", "aten::_sparse_log_softmax.int",
      "aten::_sparse_log_softmax_backward_data", "aten::_sparse_mask_projection",
      "aten::_sparse_mm.reduce", "aten::_sparse_mm_reduce_impl",
      "aten::_sparse_mm_reduce_impl_backward", "aten::_sparse_semi_structured_addmm",
      "aten::_sparse_semi_structured_apply", "aten::_sparse_semi_structured_apply_dense",
      "aten::_sparse_semi_structured_linear", "aten::_sparse_semi_structured_mm",
      "aten::_sparse_semi_structured_tile", "aten::_sparse_softmax", "aten::_sparse_softmax.int",
      "aten::_sparse_softmax_backward_data", "aten::_sparse_sparse_matmul", "aten::_sparse_sum",
      "aten::_sparse_sum.dim", "aten::_sparse_sum.dim_dtype", "aten::_sparse_sum.dtype",
      "aten::_sparse_sum_backward", "aten::_spsolve",
      "aten::_thnn_differentiable_gru_cell_backward",
      "aten::_thnn_differentiable_lstm_cell_backward", "aten::_thnn_fused_gru_cell",
      "aten::_thnn_fused_gru_cell_backward", "aten::_thnn_fused_lstm_cell",
      "aten::_thnn_fused_lstm_cell_backward", "aten::_thnn_fused_lstm_cell_backward_impl",
      "aten::_to_dense", "aten::_to_sparse_semi_structured", "aten::_transform_bias_rescale_qkv",
      "aten::_transformer_encoder_layer_fwd", "aten::_triton_multi_head_attention",
      "aten::_triton_scaled_dot_attention", "aten::_values_copy", "aten::_weight_int4pack_mm",
      "aten::_weight_int4pack_mm_for_cpu", "aten::_weight_int4pack_mm_with_scales_and_zeros",
      "aten::_weight_int8pack_mm", "aten::_wrapped_quantized_linear_prepacked",
      "aten::addmm.dtype", "aten::affine_grid_generator", "aten::baddbmm.dtype",
      "aten::batch_norm_backward", "aten::batch_norm_backward_elemt",
      "aten::batch_norm_backward_reduce", "aten::batch_norm_elemt",
      "aten::batch_norm_gather_stats", "aten::batch_norm_gather_stats_with_counts",
      "aten::batch_norm_stats", "aten::bmm.dtype", "aten::ccol_indices_copy",
      "aten::col_indices_copy", "aten::conv_depthwise3d",
      "aten::convolution_backward_overrideable", "aten::convolution_overrideable",
      "aten::copy_sparse_to_sparse", "aten::crow_indices_copy",
      "aten::cudnn_affine_grid_generator", "aten::cudnn_affine_grid_generator_backward",
      "aten::cudnn_batch_norm", "aten::cudnn_batch_norm_backward", "aten::cudnn_convolution",
      "aten::cudnn_convolution_add_relu", "aten::cudnn_convolution_relu",
      "aten::cudnn_convolution_transpose", "aten::cudnn_grid_sampler",
      "aten::cudnn_grid_sampler_backward", "aten::diagonal_backward", "aten::empty_quantized",
      "aten::fbgemm_linear_fp16_weight", "aten::fbgemm_linear_fp16_weight_fp32_activation",
      "aten::fbgemm_linear_int8_weight", "aten::fbgemm_linear_int8_weight_fp32_activation",
      "aten::fbgemm_pack_quantized_matrix", "aten::fbgemm_pack_quantized_matrix.KN",
      "aten::gru.data", "aten::gru_cell", "aten::hspmm", "aten::indices_copy", "aten::int_repr",
      "aten::linalg_cond.p_str", "aten::linalg_ldl_solve", "aten::linalg_lu_solve",
      "aten::linear_backward", "aten::lstm.data", "aten::lstm_mps_backward", "aten::lu_solve",
      "aten::matmul_backward", "aten::max_pool2d_backward", "aten::miopen_batch_norm",
      "aten::miopen_batch_norm_backward", "aten::miopen_convolution",
      "aten::miopen_convolution_add_relu", "aten::miopen_convolution_relu",
      "aten::miopen_convolution_transpose", "aten::miopen_ctc_loss",
      "aten::miopen_ctc_loss.Tensor", "aten::miopen_depthwise_convolution", "aten::miopen_rnn",
      "aten::miopen_rnn_backward", "aten::mkldnn_adaptive_avg_pool2d",
      "aten::mkldnn_adaptive_avg_pool2d_backward", "aten::mkldnn_convolution",
      "aten::mkldnn_linear", "aten::mkldnn_linear_backward", "aten::mkldnn_linear_backward_input",
      "aten::mkldnn_linear_backward_weights", "aten::mkldnn_max_pool2d",
      "aten::mkldnn_max_pool2d_backward", "aten::mkldnn_max_pool3d",
      "aten::mkldnn_max_pool3d_backward", "aten::mkldnn_reorder_conv2d_weight",
      "aten::mkldnn_reorder_conv3d_weight", "aten::mm.dtype", "aten::mps_convolution_backward",
      "aten::mps_convolution_transpose_backward", "aten::native_batch_norm",
      "aten::native_batch_norm_backward", "aten::native_norm",
      "aten::native_norm.ScalarOpt_dim_dtype", "aten::nested_to_padded_tensor",
      "aten::nll_loss2d_backward", "aten::q_per_channel_scales", "aten::q_per_channel_zero_points",
      "aten::quantize_per_channel", "aten::quantize_per_tensor",
      "aten::quantize_per_tensor.tensor_qparams", "aten::quantize_per_tensor.tensors",
      "aten::quantize_per_tensor_dynamic", "aten::quantized_batch_norm",
      "aten::quantized_gru.data", "aten::quantized_gru.data_legacy", "aten::quantized_gru.input",
      "aten::quantized_gru.input_legacy", "aten::quantized_gru_cell", "aten::quantized_lstm.data",
      "aten::quantized_lstm.data_legacy", "aten::quantized_lstm.input",
      "aten::quantized_lstm.input_legacy", "aten::quantized_lstm_cell",
      "aten::quantized_max_pool1d", "aten::quantized_max_pool2d", "aten::quantized_max_pool3d",
      "aten::quantized_rnn_relu_cell", "aten::quantized_rnn_tanh_cell", "aten::resize_as_sparse",
      "aten::rnn_relu.data", "aten::rnn_tanh.data", "aten::row_indices_copy",
      "aten::set.source_Storage", "aten::set.source_Storage_storage_offset", "aten::smm",
      "aten::sparse_compressed_tensor.comp_plain_value",
      "aten::sparse_compressed_tensor.comp_plain_value_size", "aten::sparse_mask",
      "aten::sparse_resize", "aten::sparse_resize_and_clear", "aten::sparse_sampled_addmm",
      "aten::sspaddmm", "aten::to_padded_tensor", "aten::trace_backward", "aten::values_copy",
  };
  return kNames;
}

}  // namespace

bool OfTorchScriptAlone(const c10::FunctionSchema& schema) {
  return !c10::Dispatcher::singleton().findSchema({schema.name(), schema.overload_name()});
}

Alias AliasOf(const c10::FunctionSchema& schema, size_t input, size_t output, size_t items) {
  // The operator takes or returns a variable number of values.
  if (input >= schema.arguments().size() || output >= schema.returns().size()) return Alias::kKnown;
  if (schema.may_contain_alias({c10::SchemaArgType::input, input},
                               {c10::SchemaArgType::output, output}))
    return Alias::kKnown;
  const auto [first, last] = Undeclared().equal_range(schema.name());
  for (auto at = first; at != last; ++at)
    if (at->second.index == input && (items < 2 || !at->second.alone)) return Alias::kKnown;
  if (OfTorchScriptAlone(schema)) return Alias::kKnown;  // a list keeps its elements
  const bool called = schema.name().starts_with("aten::") ||
                      schema.name().starts_with("pipewright::") ||
                      IsOwnTransformersOperator(schema.name());
  return called && !NeverCalled().count(c10::toString(schema.operator_name())) ? Alias::kNone
                                                                               : Alias::kUnknown;
}

bool WritesTo(const c10::FunctionSchema& schema, size_t input) {
  if (input >= schema.arguments().size()) return false;
  if (schema.is_mutable({c10::SchemaArgType::input, input})) return true;
  const auto [first, last] = UndeclaredWrites().equal_range(schema.name());
  return std::any_of(first, last, [&](const auto& entry) { return entry.second == input; });
}

Alias AliasOf(const torch::jit::Node* node, size_t input, size_t output) {
  const c10::FunctionSchema* schema = node->maybeSchema();
  if (!schema)  // creates or unpacks a list or tuple
    return node->kind().is_prim() ? Alias::kKnown : Alias::kNone;
  const torch::jit::Node* list = node->inputs()[input]->node();
  const bool made = list->kind() == torch::jit::prim::ListConstruct;
  return AliasOf(*schema, input, output, made ? list->inputs().size() : 1);
}

}  // namespace pipewright
