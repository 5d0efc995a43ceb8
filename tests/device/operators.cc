// Operators of the test device: the CPU's, called by the thread of the stream.
//
// The sizes of the results are needed at the call, when the values are not there yet. So each
// operator runs twice: at once on zeros of the same sizes, strides and types, which gives the
// sizes, and then in the stream. Sizes are remembered, so that the first run is rare.
#include <ATen/ATen.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/native/DispatchStub.h>
#include <ATen/native/transformers/attention.h>
#include <torch/library.h>

#include <map>
#include <memory>
#include <mutex>
#include <sstream>
#include <string>

#include "torch_device.h"

namespace sim {

namespace {

using c10::IValue, torch::jit::Stack;

at::Tensor ZerosLike(const at::Tensor& tensor) {
  const auto elements = static_cast<int64_t>(Extent(tensor) / tensor.element_size());
  return at::zeros({elements}, at::TensorOptions(tensor.scalar_type()))
      .as_strided(tensor.sizes(), tensor.strides());
}

// One call of an operator.
struct Call {
  const c10::OperatorHandle& op;
  const char* name;
  std::vector<IValue> arguments;
  std::optional<c10::Device> device;
  bool has_masks = false;  // or bytes, which are masks when used as indices
  Stack real, zeros;       // the arguments for the stream, and for the first run
  std::vector<Access> accesses;
  struct Changed {
    at::Tensor tensor, zeros;
  };
  std::vector<Changed> changed;  // arguments that the operator writes
};

struct Both {
  at::Tensor real, zeros;
};

// Keeps the mark of scalars as tensors, which count less in type promotion.
void KeepWrapped(const at::Tensor& from, const at::Tensor& to) {
  if (from.unsafeGetTensorImpl()->is_wrapped_number())
    to.unsafeGetTensorImpl()->set_wrapped_number(true);
}

Both CopyOfHost(const Call& call, const at::Tensor& tensor) {
  const std::string_view name = call.name;
  TORCH_CHECK(tensor.dim() == 0 || name == "aten::index" || name == "aten::_index_put_impl_",
              "sim: ", name, ": a tensor of the CPU among tensors of the device");
  at::Tensor copy = tensor.clone();
  KeepWrapped(tensor, copy);
  return {copy, copy};
}

Both Translate(Call& call, const at::Tensor& tensor, bool writes) {
  if (!tensor.defined()) return {};
  if (!IsOfDevice(tensor)) return CopyOfHost(call, tensor);
  TORCH_CHECK(!call.device || *call.device == tensor.device(), "sim: ", call.name,
              ": tensors of ", *call.device, " and ", tensor.device());
  call.device = tensor.device();
  call.has_masks |= tensor.scalar_type() == at::kBool || tensor.scalar_type() == at::kByte;
  call.accesses.push_back(AccessOf(tensor, writes));
  Both both{ShadowTensor(tensor), ZerosLike(tensor)};
  KeepWrapped(tensor, both.real);
  KeepWrapped(tensor, both.zeros);
  if (writes) call.changed.push_back({tensor, both.zeros});
  return both;
}

// Returns true for a list of tensors and None; TorchScript's interpreter makes ones whose elements
// have no type.
bool MayHoldTensors(const IValue& value) {
  if (value.isOptionalTensorList()) return true;
  if (!value.isList()) return false;
  const c10::ArrayRef<IValue> elements = value.toListRef();
  return std::any_of(elements.begin(), elements.end(),
                     [](const IValue& e) { return e.isTensor(); });
}

void TranslateArgument(Call& call, const c10::Argument& argument, const IValue& value) {
  const bool writes = argument.alias_info() && argument.alias_info()->isWrite();
  if (value.isTensor()) {
    Both both = Translate(call, value.toTensor(), writes);
    call.real.emplace_back(both.real), call.zeros.emplace_back(both.zeros);
  } else if (value.isTensorList()) {
    c10::List<at::Tensor> real, zeros;
    for (const at::Tensor& tensor : value.toTensorVector()) {
      Both both = Translate(call, tensor, writes);
      real.push_back(both.real), zeros.push_back(both.zeros);
    }
    call.real.emplace_back(real), call.zeros.emplace_back(zeros);
  } else if (MayHoldTensors(value)) {
    c10::List<std::optional<at::Tensor>> real, zeros;
    for (const IValue& element : value.toListRef()) {
      const bool there = element.isTensor();
      Both both = Translate(call, there ? element.toTensor() : at::Tensor(), writes);
      real.push_back(there ? std::optional(both.real) : std::nullopt);
      zeros.push_back(there ? std::optional(both.zeros) : std::nullopt);
    }
    call.real.emplace_back(real), call.zeros.emplace_back(zeros);
  } else {
    IValue host = value;
    if (value.isDevice()) {
      if (!call.device) call.device = value.toDevice();
      host = c10::Device(at::kCPU);
    } else if (argument.name() == "pin_memory" && value.isBool()) {
      host = false;
    }
    call.real.push_back(host), call.zeros.push_back(host);
  }
}

void TranslateArguments(Call& call) {
  call.real.clear(), call.zeros.clear(), call.accesses.clear(), call.changed.clear();
  for (size_t i = 0; i < call.arguments.size(); ++i)
    TranslateArgument(call, call.op.schema().arguments()[i], call.arguments[i]);
  TORCH_CHECK(call.device, "sim: ", call.name, ": no argument says which device");
}

// Runs the CPU's kernel, or the composite one that the CPU would use.
void RunOnCpu(const c10::OperatorHandle& op, Stack& stack) {
  at::NoGradGuard no_grad;
  at::AutoDispatchBelowADInplaceOrView below;
  op.redispatchBoxed(c10::DispatchKeySet(c10::DispatchKey::CPU), &stack);
}

// Returns everything that the sizes of the results depend on, as text.
std::string KeyOf(const Call& call) {
  std::ostringstream key;
  auto add = [&](const at::Tensor& tensor) {
    if (tensor.defined())
      key << tensor.scalar_type() << tensor.sizes() << tensor.strides()
          << tensor.unsafeGetTensorImpl()->is_wrapped_number();
    key << '|';
  };
  key << call.op.operator_name() << '|';
  for (const IValue& value : call.real) {
    if (value.isTensor())
      add(value.toTensor());
    else if (value.isTensorList())
      for (const at::Tensor& tensor : value.toTensorVector()) add(tensor);
    else if (value.isOptionalTensorList())
      for (const auto& tensor : value.toOptionalTensorVector()) add(tensor.value_or(at::Tensor()));
    else
      key << value << '|';
  }
  return key.str();
}

bool Waits(const Call& call) {
  if (call.op.hasTag(at::Tag::data_dependent_output)) return true;
  // Random numbers come from the CPU's generator, in the order of the calls.
  if (call.op.hasTag(at::Tag::nondeterministic_seeded)) return true;
  const bool indices = std::string_view(call.name) == "aten::index";
  return call.op.hasTag(at::Tag::dynamic_output_shape) && (!indices || call.has_masks);
}

// Returns the operator's results for zeros, or nothing if their sizes may differ from the real
// ones.
std::optional<Stack> Outlines(const Call& call) {
  if (Waits(call)) return std::nullopt;
  static std::mutex mutex;
  static auto& known = *new std::map<std::string, Stack>;
  const std::string key = KeyOf(call);
  {
    std::lock_guard lock(mutex);
    if (auto found = known.find(key); found != known.end()) return found->second;
  }
  Stack results = call.zeros;
  try {
    RunOnCpu(call.op, results);
  } catch (const std::exception&) {
    return std::nullopt;  // the real run throws too, unless only zeros are invalid
  }
  for (const Call::Changed& one : call.changed)
    if (one.tensor.sizes() != one.zeros.sizes()) return results;  // not cached: grows each time
  std::lock_guard lock(mutex);
  known[key] = results;
  return results;
}

// Gives tensors passed as out= the sizes of what will be written to them.
void GrowChanged(Call& call) {
  bool grows = false;
  for (const Call::Changed& one : call.changed) {
    if (one.tensor.sizes() == one.zeros.sizes()) continue;
    Resize(one.tensor, one.zeros.sizes());
    one.tensor.unsafeGetTensorImpl()->set_sizes_and_strides(one.zeros.sizes(),
                                                            one.zeros.strides());
    grows = true;
  }
  if (grows) TranslateArguments(call);
}

std::vector<at::Tensor> TensorsOf(const IValue& result) {
  if (result.isTensor()) return {result.toTensor()};
  if (result.isTensorList()) return result.toTensorVector();
  return {};
}

// Returns the argument that an operator returns as this result.
const IValue& Returned(const Call& call, const c10::AliasInfo& alias) {
  const auto& arguments = call.op.schema().arguments();
  TORCH_CHECK(alias.isWrite(), "sim: ", call.name, " is a view, and has no kernel here");
  for (size_t i = 0; i < arguments.size(); ++i)
    if (arguments[i].alias_info() && *arguments[i].alias_info() == alias) return call.arguments[i];
  TORCH_CHECK(false, "sim: ", call.name, " returns no argument of its own");
}

// Allocates the results. `targets` receives the tensors of each, to which the stream writes.
Stack MakeResults(Call& call, const Stack& outlines,
                  std::vector<std::vector<at::Tensor>>& targets) {
  Stack results;
  for (size_t i = 0; i < outlines.size(); ++i) {
    targets.emplace_back();
    if (const c10::AliasInfo* alias = call.op.schema().returns()[i].alias_info()) {
      results.push_back(Returned(call, *alias));
      continue;
    }
    std::vector<at::Tensor> made;
    for (const at::Tensor& outline : TensorsOf(outlines[i])) {
      made.emplace_back(), targets.back().emplace_back();
      if (!outline.defined()) continue;
      made.back() =
          EmptyStrided(outline.sizes(), outline.strides(), outline.scalar_type(), *call.device);
      targets.back().back() = ShadowTensor(made.back());
      call.accesses.push_back(AccessOf(made.back(), true));
    }
    if (outlines[i].isTensor())
      results.emplace_back(made[0]);
    else if (outlines[i].isTensorList())
      results.emplace_back(std::move(made));
    else
      results.push_back(outlines[i]);
  }
  return results;
}

void CopyResults(const Stack& values, const std::vector<std::vector<at::Tensor>>& targets,
                 const char* name) {
  at::NoGradGuard no_grad;
  for (size_t i = 0; i < targets.size(); ++i)
    for (size_t k = 0; k < targets[i].size(); ++k) {
      const at::Tensor& target = targets[i][k];
      if (!target.defined()) continue;
      const at::Tensor value = TensorsOf(values[i])[k];
      TORCH_CHECK(value.sizes() == target.sizes(), "sim: ", name,
                  ": the sizes of its results depend on values");
      target.copy_(value);
    }
}

Stack RunLater(Call& call, const Stack& outlines) {
  std::vector<std::vector<at::Tensor>> targets;
  Stack results = MakeResults(call, outlines, targets);
  Launch(CurrentQueue(call.device->index()), call.name,
         [op = call.op, name = call.name, stack = std::move(call.real), targets]() mutable {
           RunOnCpu(op, stack);
           CopyResults(stack, targets, name);
         },
         call.accesses);
  return results;
}

// Waits for the stream and runs on this thread.
Stack RunNow(Call& call) {
  Queue& queue = CurrentQueue(call.device->index());
  Launch(queue, call.name, [] {}, call.accesses);
  Synchronize(queue);
  RunOnCpu(call.op, call.real);
  call.accesses.clear();
  std::vector<std::vector<at::Tensor>> targets;
  Stack results = MakeResults(call, call.real, targets);
  Launch(queue, call.name,
         [name = call.name, values = call.real, targets] { CopyResults(values, targets, name); },
         call.accesses);
  return results;
}

// Returns a copy of a name that is never freed, because memory refers to it.
const char* KeptName(const std::string& name) {
  static std::mutex mutex;
  static auto& names = *new std::set<std::string>;
  std::lock_guard lock(mutex);
  return names.insert(name).first->c_str();
}

bool IsView(const c10::FunctionSchema& schema) {
  for (const c10::Argument& result : schema.returns())
    if (result.alias_info() && !result.alias_info()->isWrite()) return true;
  return schema.name() == "aten::set_";
}

TORCH_LIBRARY_IMPL(_, PrivateUse1, m) {
  m.fallback(torch::CppFunction::makeFromBoxedFunction<&RunOnStream>());
}

// Registered by name, because the composite kernel calls a kernel for accelerators that does not
// exist.
TORCH_LIBRARY_IMPL(aten, PrivateUse1, m) {
  for (const char* name : {"convolution", "convolution_backward", "_convolution"})
    m.impl(name, torch::CppFunction::makeFromBoxedFunction<&RunOnStream>());
}

}  // namespace

void RunOnStream(const c10::OperatorHandle& op, c10::DispatchKeySet, Stack* stack) {
  const size_t count = op.schema().arguments().size();
  Call call{.op = op,
            .name = KeptName(op.schema().name()),
            .arguments = torch::jit::last(*stack, count).vec(),
            .device = {},
            .real = {},
            .zeros = {},
            .accesses = {},
            .changed = {}};
  TranslateArguments(call);
  Stack results;
  if (const std::optional<Stack> outlines = Outlines(call)) {
    GrowChanged(call);
    results = RunLater(call, *outlines);
  } else {
    results = RunNow(call);
  }
  torch::jit::drop(*stack, count);
  for (IValue& result : results) stack->push_back(std::move(result));
}

// Registers each operator: a fallback has lower priority than composite kernels, whose bits differ
// from those of the CPU's own kernels.
void RegisterOperators() {
  static auto& library = *new torch::Library(torch::Library::IMPL, "aten",
                                             c10::DispatchKey::PrivateUse1, __FILE__, __LINE__);
  for (const c10::OperatorName& name : c10::Dispatcher::singleton().getAllOpNames()) {
    const auto op = c10::Dispatcher::singleton().findSchema(name);
    if (!name.name.starts_with("aten::") || !op ||
        !op->hasKernelForDispatchKey(c10::DispatchKey::CPU) ||
        op->hasKernelForDispatchKey(c10::DispatchKey::PrivateUse1) || IsView(op->schema()))
      continue;
    const std::string overload = name.overload_name.empty() ? "" : "." + name.overload_name;
    library.impl((name.name.substr(6) + overload).c_str(),
                 torch::CppFunction::makeFromBoxedFunction<&RunOnStream>());
  }
}

}  // namespace sim

// Makes attention choose the CPU's kernel, which has the CPU's bits.
namespace at::native {

static int64_t ChooseAsCpu(const Tensor& query, const Tensor& key, const Tensor& value,
                           const std::optional<Tensor>& mask, double dropout, bool causal,
                           std::optional<double> scale, bool grouped) {
  auto zeros = [](const Tensor& tensor) {
    return sim::ZerosLike(tensor).requires_grad_(tensor.requires_grad());
  };
  std::optional<Tensor> zero_mask;
  if (mask && mask->defined()) zero_mask = zeros(*mask);
  return at::_fused_sdp_choice(zeros(query), zeros(key), zeros(value), zero_mask, dropout, causal,
                               scale, grouped);
}
REGISTER_PRIVATEUSE1_DISPATCH(_fused_sdp_choice_stub, &ChooseAsCpu)

}  // namespace at::native
