#include "runtime/recorded/perturbed_inputs.h"

#include <ATen/ATen.h>
#include <ATen/CPUGeneratorImpl.h>

namespace pipewright {

namespace {

bool IsWhole(const c10::IValue& input) {
  return input.isTensor() && input.toTensor().numel() > 0 &&
         at::isIntegralType(input.toTensor().scalar_type(), /*includeBool=*/false);
}

at::Tensor Unique(const at::Tensor& tensor) { return std::get<0>(at::_unique(tensor)); }

at::Tensor OtherWholes(const at::Tensor& x, const at::Tensor& seen, at::Generator& generator) {
  at::Tensor values = Unique(x);
  if (values.numel() < 2) values = Unique(at::cat({values, seen}));
  const int64_t n = values.numel();
  if (n < 2) return x;
  const at::Tensor steps =
      at::randint(1, n, x.sizes(), generator, at::TensorOptions(at::kLong));
  const at::Tensor places = at::searchsorted(values, x.contiguous()).add_(steps).remainder_(n);
  return values.index_select(0, places.flatten()).view(x.sizes());
}

at::Tensor OtherFractions(const at::Tensor& x, at::Generator& generator) {
  if (x.is_complex())
    return at::view_as_complex(OtherFractions(at::view_as_real(x).contiguous(), generator));
  const at::Tensor finite = x.masked_select(x.isfinite()).to(at::kDouble);
  const double low = finite.numel() ? finite.min().item<double>() : 0;
  const double high = finite.numel() ? finite.max().item<double>() : 0;
  // Keeps positive numbers positive, and numbers from 0 to 1 in that range.
  if (low == high) return at::full_like(x, low == 0 ? 0.5 : low / 2);
  const at::Tensor drawn =
      at::rand(x.sizes(), generator, at::TensorOptions(at::kDouble)).mul_(high - low).add_(low);
  const at::Tensor other = drawn.to(x.scalar_type());
  const at::Tensor lows = at::full_like(x, low), highs = at::full_like(x, high);
  return at::where(other == x, at::where(x == lows, highs, lows), other);
}

// Elements that share memory have the same value in both.
at::Tensor InForm(const at::Tensor& values, const at::Tensor& form) {
  at::Tensor single = values;
  std::vector<int64_t> sizes = form.sizes().vec();
  for (int64_t d = 0; d < form.dim(); ++d)
    if (form.stride(d) == 0 && form.size(d) > 1) {
      single = single.narrow(d, 0, 1);
      sizes[static_cast<size_t>(d)] = 1;
    }
  at::Tensor made = at::empty_strided(sizes, form.strides(), form.options()).copy_(single);
  made = made.as_strided(form.sizes(), form.strides());
  if (form.unsafeGetTensorImpl()->is_wrapped_number())
    made.unsafeGetTensorImpl()->set_wrapped_number(true);
  return made;
}

}  // namespace

bool NoteValues(const std::vector<c10::IValue>& inputs, Tensors& seen) {
  bool several = false;
  seen.resize(inputs.size());
  for (size_t i = 0; i < inputs.size(); ++i) {
    if (!IsWhole(inputs[i]) || (seen[i].defined() && seen[i].numel() > 1)) continue;
    at::NoGradGuard no_grad;
    const at::Tensor& x = inputs[i].toTensor();
    if (seen[i].defined() && x.eq(seen[i]).all().item<bool>()) continue;
    const at::Tensor values = Unique(x);
    seen[i] = seen[i].defined() ? Unique(at::cat({values, seen[i]})) : values;
    several = several || seen[i].numel() > 1;
  }
  return several;
}

bool HasOneValue(const Tensors& seen) {
  for (const at::Tensor& values : seen)
    if (values.defined() && values.numel() == 1) return true;
  return false;
}

std::vector<c10::IValue> PerturbedInputs(const std::vector<c10::IValue>& inputs,
                                         const Tensors& seen, int draw) {
  at::NoGradGuard no_grad;
  at::Generator generator = at::detail::createCPUGenerator(static_cast<uint64_t>(draw) + 1);
  std::vector<c10::IValue> others = inputs;
  for (size_t i = 0; i < inputs.size(); ++i) {
    if (!inputs[i].isTensor() || inputs[i].toTensor().numel() == 0) continue;
    const at::Tensor x = inputs[i].toTensor().detach();
    at::Tensor other = x;
    if (IsWhole(inputs[i]))
      other = OtherWholes(x, seen[i], generator);
    else if (x.scalar_type() != at::kBool)
      other = OtherFractions(x, generator);
    else if (draw % 2 == 0)
      other = x.logical_not();
    others[i] = InForm(other, x);
  }
  return others;
}

std::vector<c10::IValue> CopyInForm(std::vector<c10::IValue> inputs) {
  at::NoGradGuard no_grad;
  for (c10::IValue& input : inputs)
    if (input.isTensor()) input = InForm(input.toTensor().detach(), input.toTensor().detach());
  return inputs;
}

}  // namespace pipewright
