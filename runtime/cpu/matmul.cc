#include "runtime/cpu/matmul.h"

#include <ATen/ATen.h>
#include <ATen/CPUFunctions.h>
#include <ATen/Context.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <c10/util/Exception.h>
#include <torch/library.h>

#include <atomic>
#include <exception>
#include <memory>
#include <optional>
#include <string_view>

#include "base/error.h"

namespace pipewright {

namespace {

using OneDnnLinear = at::Tensor(const at::Tensor&, const at::Tensor&,
                                const std::optional<at::Tensor>&, std::string_view,
                                c10::List<std::optional<at::Scalar>>,
                                std::optional<std::string_view>);

// Computes input x weight^T + bias. This is an internal operator of torch.compile. It uses the
// weight without repacking, copies a non-contiguous input, and assumes that there is a bias. Empty
// if LibTorch was built without it or with another signature.
const std::optional<c10::TypedOperatorHandle<OneDnnLinear>>& OneDnn() {
  static const auto found = []() -> std::optional<c10::TypedOperatorHandle<OneDnnLinear>> {
    auto schema = c10::Dispatcher::singleton().findSchema({"mkldnn::_linear_pointwise", ""});
    if (!schema || !schema->hasKernelForDispatchKey(c10::DispatchKey::CPU)) return std::nullopt;
    try {
      return schema->typed<OneDnnLinear>();
    } catch (const std::exception&) {
      return std::nullopt;
    }
  }();
  return found;
}

std::atomic<bool> by_onednn = false;

// Returns true if oneDNN is faster and needs no copies (docs/internals/performance.md). Preparing a
// call takes 20 us, and 0.7 ms for sizes that it has not seen, as with each token of `generate`.
bool Suits(const at::Tensor& a, const at::Tensor& b) {
  constexpr int64_t kLargeWeight = 1 << 20, kLargeProduct = 1 << 26, kFew = 16;
  if (!by_onednn || a.dim() != 2 || b.dim() != 2 || a.scalar_type() != at::kFloat ||
      b.scalar_type() != at::kFloat || a.size(1) != b.size(0) || a.numel() == 0 ||
      !a.is_contiguous() || b.size(0) < kFew || b.size(1) < kFew)
    return false;
  const bool of_linear = b.stride(0) == 1 && b.stride(1) == b.size(0);
  if (!of_linear && !b.is_contiguous()) return false;
  if (a.size(0) >= kFew && a.size(0) * b.numel() >= kLargeProduct) return true;
  return b.numel() >= kLargeWeight && (of_linear || a.size(0) >= kFew);
}

at::Tensor Call(const at::Tensor& a, const at::Tensor& b, const std::optional<at::Tensor>& bias) {
  return OneDnn()->call(a, b.t(), bias, "none", c10::List<std::optional<at::Scalar>>(), "");
}

at::Tensor Mm(const at::Tensor& a, const at::Tensor& b) {
  return Suits(a, b) ? Call(a, b, {}) : at::cpu::mm(a, b);
}

at::Tensor AddMm(const at::Tensor& bias, const at::Tensor& a, const at::Tensor& b,
                 const at::Scalar& beta, const at::Scalar& alpha) {
  if (bias.dim() == 1 && bias.is_contiguous() && bias.scalar_type() == at::kFloat &&
      beta.equal(1) && alpha.equal(1) && Suits(a, b) && bias.size(0) == b.size(1))
    return Call(a, b, bias);
  return at::cpu::addmm(bias, a, b, beta, alpha);
}

// Registers the kernels forever: no thread may find them gone while the process exits. Silences
// LibTorch's warning about replaced kernels.
void Register() {
  struct Silent : c10::WarningHandler {
    void process(const c10::Warning&) override {}
  } silent;
  c10::WarningUtils::WarningHandlerGuard guard(&silent);
  auto& kernels = *new torch::Library(torch::Library::IMPL, "aten", c10::DispatchKey::CPU,
                                      __FILE__, __LINE__);
  kernels.impl("mm", Mm);
  kernels.impl("addmm", AddMm);
}

bool IsAmd() {
#if defined(__x86_64__) && defined(__GNUC__)
  return __builtin_cpu_is("amd");
#else
  return false;
#endif
}

}  // namespace

void UseMatMul(MatMul choice, const std::string& where) {
  if (choice == MatMul::kOneDnn && !OneDnn())
    throw Error(where, "this LibTorch has no oneDNN matrix product that pipewright can use",
                "choose another, or use a LibTorch built with oneDNN");
  const bool use =
      choice == MatMul::kOneDnn || (choice == MatMul::kAuto && OneDnn() && at::hasMKL() && IsAmd());
  if (use) {
    static const bool registered = (Register(), true);
    static_cast<void>(registered);
  }
  by_onednn = use;
}

}  // namespace pipewright
