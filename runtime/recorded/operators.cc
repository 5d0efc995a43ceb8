#include "runtime/recorded/operators.h"

#include <ATen/core/dispatch/Dispatcher.h>

#include <set>
#include <string>

#include "ops/transformers_ops.h"

namespace pipewright {

namespace {

using Names = std::set<std::string>;

// Nodes that the interpreter runs without the dispatcher and that depend on the signature
// alone.
const Names& PlainNodes() {
  static const Names kNames = {
      "prim::Constant",      "prim::GetAttr",        "prim::ListConstruct", "prim::TupleConstruct",
      "prim::ListUnpack",    "prim::TupleUnpack",    "prim::TupleIndex",    "prim::DictConstruct",
      "prim::NumToTensor",   "prim::device",         "prim::dtype",         "prim::layout",
      "prim::requires_grad", "prim::unchecked_cast", "prim::is_cuda",       "prim::min",
      "prim::max",           "prim::TupleSlice"};
  return kNames;
}

}  // namespace

// Operators composed of others, which depend only on sizes, types and numbers among the arguments.
const Names& ComposedOperators() {
  static const Names kNames = {
      // names for other operators, comparisons and arithmetic
      "__and__", "__iand__", "__ior__", "__ixor__", "__or__", "__xor__", "absolute", "arccos",
      "arccosh", "arcsin", "arcsinh", "arctan", "arctan2", "arctanh", "clip", "clip_", "concat",
      "concatenate", "divide", "divide_", "fix", "float_power", "greater", "greater_equal",
      "isclose", "isfinite", "isreal", "less", "less_equal", "max", "min", "multiply",
      "multiply_", "negative", "negative_", "not_equal", "positive", "special_digamma", "special_erf", "special_erfc",
      "special_exp2", "special_expit", "special_expm1", "special_log1p", "special_log_softmax",
      "special_logit", "special_logsumexp", "special_round", "special_sinc", "special_softmax",
      "special_xlogy", "square", "square_", "subtract", "subtract_", "true_divide", "true_divide_",
      // shapes and views
      "adjoint", "atleast_1d", "atleast_2d", "atleast_3d", "broadcast_tensors", "broadcast_to",
      "chunk", "column_stack", "contiguous", "diag", "diagflat", "diff", "dsplit", "dstack",
      "expand_as", "flatten", "fliplr", "flipud", "hsplit", "hstack", "imag", "linalg_diagonal",
      "mH", "mT", "matrix_H", "meshgrid", "moveaxis", "movedim", "narrow", "numpy_T", "pad",
      "pad_sequence", "ravel", "real", "repeat_interleave", "reshape", "reshape_as",
      "resolve_conj", "resolve_neg",
      "row_stack", "split", "sum_to_size", "swapaxes", "swapdims", "take_along_dim", "tile",
      "unflatten", "unsafe_chunk", "view_as", "vsplit", "vstack", "where", "_pad_circular",
      "_pad_enum",
      // types and facts about a tensor
      "_cast_Byte", "_cast_Char", "_cast_Double", "_cast_Float", "_cast_Half", "_cast_Int",
      "_cast_Long", "_cast_Short", "_autocast_to_full_precision", "_autocast_to_reduced_precision",
      "can_cast", "conj", "conj_physical", "dim", "get_device", "is_complex", "is_conj",
      "is_contiguous", "is_floating_point", "is_neg", "is_signed", "numel", "promote_types",
      "result_type", "size", "storage_offset", "stride", "sym_is_contiguous", "sym_numel",
      "sym_size", "sym_storage_offset", "sym_stride", "to", "type_as",
      // products
      "bilinear", "chain_matmul", "cosine_similarity", "cross", "einsum", "ger", "inner", "kron",
      "linalg_matmul", "linalg_matrix_power", "linalg_multi_dot", "linalg_vecdot", "linear",
      "matmul", "matrix_power", "outer", "pairwise_distance", "tensordot", "cdist", "pdist",
      // reductions and order
      "argsort", "frobenius_norm", "linalg_norm", "msort", "nanmean", "norm_except_dim", "std",
      "std_mean", "trapezoid", "trapz", "var", "var_mean",
      // layers
      "_batch_norm_impl_index", "_convolution", "_convolution_mode", "_fused_rms_norm",
      "_scaled_dot_product_attention_math", "_weight_norm", "adaptive_avg_pool1d",
      "adaptive_avg_pool2d", "adaptive_avg_pool3d", "adaptive_max_pool1d", "avg_pool1d",
      "batch_norm", "conv1d", "conv2d", "conv3d", "conv_transpose1d", "conv_transpose2d",
      "conv_transpose3d", "dropout", "grid_sampler", "group_norm",
      "instance_norm", "layer_norm", "log_sigmoid", "log_softmax", "max_pool1d",
      "max_pool1d_with_indices", "max_pool2d", "max_pool3d", "prelu", "relu6", "relu6_", "rms_norm",
      "scaled_dot_product_attention", "selu", "selu_", "softmax", "thnn_conv2d",
      "_upsample_bicubic2d_aa", "_upsample_bilinear2d_aa", "_upsample_nearest_exact1d",
      "_upsample_nearest_exact2d", "_upsample_nearest_exact3d", "upsample_bicubic2d",
      "upsample_bilinear2d", "upsample_linear1d", "upsample_nearest1d", "upsample_nearest2d",
      "upsample_nearest3d", "upsample_trilinear3d",
      // losses
      "cosine_embedding_loss", "cross_entropy_loss", "hinge_embedding_loss", "kl_div", "l1_loss",
      "margin_ranking_loss", "multilabel_margin_loss", "nll_loss", "nll_loss2d", "nll_loss_nd",
      "poisson_nll_loss", "triplet_margin_loss",
      // Fourier transforms
      "fft_fft", "fft_fft2", "fft_fftn", "fft_fftshift", "fft_hfft", "fft_ifft", "fft_ifft2",
      "fft_ifftn", "fft_ifftshift", "fft_ihfft", "fft_irfft", "fft_irfft2", "fft_irfftn",
      "fft_rfft",
      "fft_rfft2", "fft_rfftn", "stft",
      // These draw random numbers; a recording refuses them by itself.
      "rand", "randn", "rrelu", "alpha_dropout", "feature_dropout", "feature_alpha_dropout"};
  return kNames;
}

// Operators that only TorchScript has, on tensors or lists of them.
const Names& OperatorsOfTorchScript() {
  static const Names kNames = {
      "__contains__", "__getitem__", "__interpolate__", "__is__", "__isnot__", "__not__",
      "__upsample__", "_infer_size", "_ncf_unsqueeze", "_ncf_view", "_set_item", "_unwrap_optional",
      "add", "append", "broadcast_shapes", "clear", "copy", "dict", "element_size", "extend",
      "insert", "items", "keys", "len", "list", "mH", "mT", "matrix_H", "mul", "numpy_T", "pop",
      "reverse", "select", "size", "slice", "stride", "sym_size", "sym_stride", "values"};
  return kNames;
}

namespace {

// Operators that do something besides computing.
const Names& Effects() {
  static const Names kNames = {"backward", "format", "hash",     "initial_seed", "manual_seed",
                               "percentFormat", "save", "seed", "set_data", "str", "warn"};
  return kNames;
}

// Operators that take lengths from memory (packed sequences) or use integers as unchecked offsets:
// on inputs that are made up for comparisons, they could crash the process.
const Names& Trusting() {
  static const Names kNames = {"_pack_padded_sequence", "embedding_bag", "_embedding_bag",
                               "_embedding_bag_forward_only", "segment_reduce"};
  return kNames;
}

bool HasTensors(const c10::TypePtr& type) {
  if (type->kind() == c10::TypeKind::TensorType || type->kind() == c10::TypeKind::AnyType ||
      type->kind() == c10::TypeKind::VarType)
    return true;
  for (const c10::TypePtr& inner : type->containedTypes())
    if (HasTensors(inner)) return true;
  return false;
}

bool HasTensors(const torch::jit::Node& node) {
  for (const torch::jit::Value* value : node.inputs())
    if (HasTensors(value->type())) return true;
  for (const torch::jit::Value* value : node.outputs())
    if (HasTensors(value->type())) return true;
  return false;
}

}  // namespace

bool IsRecordable(const torch::jit::Node& node) {
  const std::string kind = node.kind().toQualString();
  if (kind.starts_with("pipewright::") || kind.starts_with("pippy::")) return true;
  if (IsOwnTransformersOperator(kind)) return true;
  if (!kind.starts_with("aten::")) return PlainNodes().count(kind) > 0;
  const std::string name = kind.substr(6);
  if (Effects().count(name) || Trusting().count(name)) return false;
  const c10::FunctionSchema* schema = node.maybeSchema();
  if (!schema) return false;
  const auto op =
      c10::Dispatcher::singleton().findSchema({schema->name(), schema->overload_name()});
  if (!op) return !HasTensors(node) || OperatorsOfTorchScript().count(name);
  // Refuses `out` variants: a recording follows in-place writes only.
  if (!schema->arguments().empty() && schema->arguments().back().is_out()) return false;
  for (c10::DispatchKey key :
       {c10::DispatchKey::CPU, c10::DispatchKey::CompositeExplicitAutograd,
        c10::DispatchKey::CompositeExplicitAutogradNonFunctional})
    if (op->hasKernelForDispatchKey(key)) return true;
  return ComposedOperators().count(name) > 0;
}

}  // namespace pipewright
