#include "plan/partition/pipedream/codegen/torch_modules.h"

#include <algorithm>
#include <map>
#include <sstream>

#include "base/error.h"
#include "base/text.h"

namespace pipewright {

// The modules of PyTorch 2.13 that have a forward, with the parameters of their constructors: "="
// marks optional ones, "*" precedes keyword-only ones, "..." stands for any. Device and dtype are
// left out, because no repr has them. tests/e2e/codegen_test.py compares this with torch.nn.
static const char kModules[] = R"(
AdaptiveAvgPool1d output_size
AdaptiveAvgPool2d output_size
AdaptiveAvgPool3d output_size
AdaptiveLogSoftmaxWithLoss in_features n_classes cutoffs div_value= head_bias=
AdaptiveMaxPool1d output_size return_indices=
AdaptiveMaxPool2d output_size return_indices=
AdaptiveMaxPool3d output_size return_indices=
AlphaDropout p= inplace=
AvgPool1d kernel_size stride= padding= ceil_mode= count_include_pad=
AvgPool2d kernel_size stride= padding= ceil_mode= count_include_pad= divisor_override=
AvgPool3d kernel_size stride= padding= ceil_mode= count_include_pad= divisor_override=
BCELoss weight= size_average= reduce= reduction=
BCEWithLogitsLoss weight= size_average= reduce= reduction= pos_weight=
BatchNorm1d num_features eps= momentum= affine= track_running_stats= * bias=
BatchNorm2d num_features eps= momentum= affine= track_running_stats= * bias=
BatchNorm3d num_features eps= momentum= affine= track_running_stats= * bias=
Bilinear in1_features in2_features out_features bias=
CELU alpha= inplace=
CTCLoss blank= reduction= zero_infinity=
ChannelShuffle groups
CircularPad1d padding
CircularPad2d padding
CircularPad3d padding
ConstantPad1d padding value
ConstantPad2d padding value
ConstantPad3d padding value
Conv1d in_channels out_channels kernel_size stride= padding= dilation= groups= bias= padding_mode=
Conv2d in_channels out_channels kernel_size stride= padding= dilation= groups= bias= padding_mode=
Conv3d in_channels out_channels kernel_size stride= padding= dilation= groups= bias= padding_mode=
ConvTranspose1d in_channels out_channels kernel_size stride= padding= output_padding= groups=
    bias= dilation= padding_mode=
ConvTranspose2d in_channels out_channels kernel_size stride= padding= output_padding= groups=
    bias= dilation= padding_mode=
ConvTranspose3d in_channels out_channels kernel_size stride= padding= output_padding= groups=
    bias= dilation= padding_mode=
CosineEmbeddingLoss margin= size_average= reduce= reduction=
CosineSimilarity dim= eps=
CrossEntropyLoss weight= size_average= ignore_index= reduce= reduction= label_smoothing=
CrossMapLRN2d size alpha= beta= k=
DataParallel module device_ids= output_device= dim=
Dropout p= inplace=
Dropout1d p= inplace=
Dropout2d p= inplace=
Dropout3d p= inplace=
ELU alpha= inplace=
Embedding num_embeddings embedding_dim padding_idx= max_norm= norm_type= scale_grad_by_freq=
    sparse=
EmbeddingBag num_embeddings embedding_dim max_norm= norm_type= scale_grad_by_freq= mode= sparse=
    include_last_offset= padding_idx=
FeatureAlphaDropout p= inplace=
Flatten start_dim= end_dim=
Fold output_size kernel_size dilation= padding= stride=
FractionalMaxPool2d kernel_size output_size= output_ratio= return_indices=
FractionalMaxPool3d kernel_size output_size= output_ratio= return_indices=
GELU approximate=
GLU dim=
GRU input_size hidden_size num_layers= bias= batch_first= dropout= bidirectional=
GRUCell input_size hidden_size bias=
GaussianNLLLoss * full= eps= reduction=
GroupNorm num_groups num_channels eps= affine= * bias=
Hardshrink lambd=
Hardsigmoid inplace=
Hardswish inplace=
Hardtanh min_val= max_val= inplace= min_value= max_value=
HingeEmbeddingLoss margin= size_average= reduce= reduction=
HuberLoss reduction= delta=
Identity ...
InstanceNorm1d num_features eps= momentum= affine= track_running_stats= * bias=
InstanceNorm2d num_features eps= momentum= affine= track_running_stats= * bias=
InstanceNorm3d num_features eps= momentum= affine= track_running_stats= * bias=
KLDivLoss size_average= reduce= reduction= log_target=
L1Loss size_average= reduce= reduction=
LPPool1d norm_type kernel_size stride= ceil_mode=
LPPool2d norm_type kernel_size stride= ceil_mode=
LPPool3d norm_type kernel_size stride= ceil_mode=
LSTM input_size hidden_size num_layers= bias= batch_first= dropout= bidirectional= proj_size=
LSTMCell input_size hidden_size bias=
LayerNorm normalized_shape eps= elementwise_affine= bias=
LazyBatchNorm1d eps= momentum= affine= track_running_stats= * bias=
LazyBatchNorm2d eps= momentum= affine= track_running_stats= * bias=
LazyBatchNorm3d eps= momentum= affine= track_running_stats= * bias=
LazyConv1d out_channels kernel_size stride= padding= dilation= groups= bias= padding_mode=
LazyConv2d out_channels kernel_size stride= padding= dilation= groups= bias= padding_mode=
LazyConv3d out_channels kernel_size stride= padding= dilation= groups= bias= padding_mode=
LazyConvTranspose1d out_channels kernel_size stride= padding= output_padding= groups= bias=
    dilation= padding_mode=
LazyConvTranspose2d out_channels kernel_size stride= padding= output_padding= groups= bias=
    dilation= padding_mode=
LazyConvTranspose3d out_channels kernel_size stride= padding= output_padding= groups= bias=
    dilation= padding_mode=
LazyInstanceNorm1d eps= momentum= affine= track_running_stats= * bias=
LazyInstanceNorm2d eps= momentum= affine= track_running_stats= * bias=
LazyInstanceNorm3d eps= momentum= affine= track_running_stats= * bias=
LazyLinear out_features bias=
LeakyReLU negative_slope= inplace=
Linear in_features out_features bias=
LinearCrossEntropyLoss in_features num_classes * out_features= bias= reduction= weight=
    ignore_index= label_smoothing= options=
LocalResponseNorm size alpha= beta= k=
LogSigmoid
LogSoftmax dim=
MSELoss size_average= reduce= reduction=
MarginRankingLoss margin= size_average= reduce= reduction=
MaxPool1d kernel_size stride= padding= dilation= return_indices= ceil_mode=
MaxPool2d kernel_size stride= padding= dilation= return_indices= ceil_mode=
MaxPool3d kernel_size stride= padding= dilation= return_indices= ceil_mode=
MaxUnpool1d kernel_size stride= padding=
MaxUnpool2d kernel_size stride= padding=
MaxUnpool3d kernel_size stride= padding=
Mish inplace=
MultiLabelMarginLoss size_average= reduce= reduction=
MultiLabelSoftMarginLoss weight= size_average= reduce= reduction=
MultiMarginLoss p= margin= weight= size_average= reduce= reduction=
MultiheadAttention embed_dim num_heads dropout= bias= add_bias_kv= add_zero_attn= kdim= vdim=
    batch_first=
NLLLoss weight= size_average= ignore_index= reduce= reduction=
NLLLoss2d weight= size_average= ignore_index= reduce= reduction=
PReLU num_parameters= init=
PairwiseDistance p= eps= keepdim=
PixelShuffle upscale_factor
PixelUnshuffle downscale_factor
PoissonNLLLoss log_input= full= size_average= eps= reduce= reduction=
RMSNorm normalized_shape eps= elementwise_affine=
RNN input_size hidden_size num_layers= nonlinearity= bias= batch_first= dropout= bidirectional=
RNNCell input_size hidden_size bias= nonlinearity=
RReLU lower= upper= inplace=
ReLU inplace=
ReLU6 inplace=
ReflectionPad1d padding
ReflectionPad2d padding
ReflectionPad3d padding
ReplicationPad1d padding
ReplicationPad2d padding
ReplicationPad3d padding
SELU inplace=
Sequential ...
SiLU inplace=
Sigmoid
SmoothL1Loss size_average= reduce= reduction= beta=
SoftMarginLoss size_average= reduce= reduction=
Softmax dim=
Softmax2d
Softmin dim=
Softplus beta= threshold=
Softshrink lambd=
Softsign
SyncBatchNorm num_features eps= momentum= affine= track_running_stats= process_group= * bias=
Tanh
Tanhshrink
Threshold threshold value inplace=
Transformer d_model= nhead= num_encoder_layers= num_decoder_layers= dim_feedforward= dropout=
    activation= custom_encoder= custom_decoder= layer_norm_eps= batch_first= norm_first= bias=
TransformerDecoder decoder_layer num_layers norm=
TransformerDecoderLayer d_model nhead dim_feedforward= dropout= activation= layer_norm_eps=
    batch_first= norm_first= bias=
TransformerEncoder encoder_layer num_layers norm= enable_nested_tensor= mask_check=
TransformerEncoderLayer d_model nhead dim_feedforward= dropout= activation= layer_norm_eps=
    batch_first= norm_first= bias=
TripletMarginLoss margin= p= eps= swap= size_average= reduce= reduction=
TripletMarginWithDistanceLoss * distance_function= margin= swap= reduction=
Unflatten dim unflattened_size
Unfold kernel_size dilation= padding= stride=
Upsample size= scale_factor= mode= align_corners= recompute_scale_factor=
UpsamplingBilinear2d size= scale_factor=
UpsamplingNearest2d size= scale_factor=
ZeroPad1d padding
ZeroPad2d padding
ZeroPad3d padding
)";

namespace {

struct Parameter {
  std::string name;
  bool optional = false, named_only = false;
};

// An argument that a repr has but the constructor does not take. It always has one of these values.
struct PrintedOnly {
  const char *module, *argument;
  std::vector<std::string> values;
};

struct Constructor {
  std::vector<Parameter> parameters;
  bool anything = false;
  std::string text;
};

}  // namespace

static std::map<std::string, Constructor> ReadModules() {
  std::map<std::string, Constructor> modules;
  Constructor* constructor = nullptr;
  bool named_only = false;
  for (const std::string& line : Split(kModules, '\n')) {
    std::istringstream words(line);
    std::string word;
    if (!line.empty() && line[0] != ' ') {
      words >> word;
      constructor = &modules[word];
      named_only = false;
    }
    while (words >> word) {
      constructor->text += (constructor->text.empty() ? "" : ", ") + word;
      if (word == "...") {
        constructor->anything = true;
      } else if (word == "*") {
        named_only = true;
      } else {
        const bool optional = word.back() == '=';
        if (optional) word.pop_back();
        constructor->parameters.push_back({word, optional, named_only});
      }
    }
  }
  return modules;
}

static const std::map<std::string, Constructor>& Modules() {
  static const std::map<std::string, Constructor> modules = ReadModules();
  return modules;
}

static bool IsPrintedOnly(const std::string& module, const ModuleRepr::Argument& argument) {
  static const std::vector<PrintedOnly> kPrintedOnly = {
      {"UpsamplingNearest2d", "mode", {"'nearest'"}},
      {"UpsamplingBilinear2d", "mode", {"'bilinear'"}},
      {"ZeroPad2d", "value", {"0", "0.0"}},  // PyTorch up to 2.0
  };
  for (const PrintedOnly& printed : kPrintedOnly)
    if (module == printed.module && argument.name == printed.argument)
      return std::count(printed.values.begin(), printed.values.end(), argument.value) > 0;
  return false;
}

std::string TorchName(const std::string& printed) {
  std::string name = printed;
  if (name.starts_with("torch.nn.modules."))
    name = name.substr(name.rfind('.') + 1);
  else if (name.starts_with("torch.nn."))
    name = name.substr(9);
  if (name == "NonDynamicallyQuantizableLinear") name = "Linear";
  return Modules().count(name) ? name : "";
}

std::vector<std::string> TorchModules() {
  std::vector<std::string> names;
  for (const auto& [name, unused] : Modules()) names.push_back(name);
  return names;
}

static void CheckArguments(const std::string& name, const ModuleRepr& module,
                           const std::vector<ModuleRepr::Argument>& arguments,
                           const Description& description) {
  const Constructor& constructor = Modules().at(name);
  if (constructor.anything) return;
  const std::string cure = "its constructor takes (" + constructor.text + ")";
  const std::vector<Parameter>& known = constructor.parameters;
  std::vector<char> given(known.size(), 0);
  std::vector<std::string> names;
  for (const Parameter& parameter : known) names.push_back(parameter.name);
  size_t next = 0;
  for (const ModuleRepr::Argument& argument : arguments) {
    size_t position = next++;
    if (!argument.name.empty()) {
      position = static_cast<size_t>(std::find(names.begin(), names.end(), argument.name) -
                                     names.begin());
      if (position == names.size())
        throw Error(description.At(argument.at),
                    "torch.nn." + name + " has no argument " + argument.name +
                        Suggest(argument.name, names),
                    cure);
    } else if (position >= known.size() || known[position].named_only) {
      throw Error(description.At(argument.at),
                  "torch.nn." + name + " takes no positional arguments here", cure);
    }
    if (given[position])
      throw Error(description.At(argument.at), argument.name + " is given twice", cure);
    given[position] = 1;
  }
  for (size_t i = 0; i < known.size(); ++i)
    if (!known[i].optional && !given[i])
      throw Error(description.At(module.at), "torch.nn." + name + " needs " + known[i].name, cure);
}

std::vector<ModuleRepr::Argument> ConstructorArguments(const ModuleRepr& module,
                                                       const Description& description) {
  const std::string name = TorchName(module.name);
  std::vector<ModuleRepr::Argument> arguments = module.arguments;
  std::erase_if(arguments, [&](const ModuleRepr::Argument& argument) {
    return IsPrintedOnly(name, argument);
  });
  try {
    CheckArguments(name, module, arguments, description);
  } catch (const Error&) {
    if (!name.starts_with("Lazy")) throw;
    throw Error(description.At(module.at), name + ": the profile has no sizes for this lazy layer",
                "run the model once on an input, then profile it: the layer is a " +
                    name.substr(4) + " from then on");
  }
  return arguments;
}

}  // namespace pipewright
