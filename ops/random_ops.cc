#include "ops/random_ops.h"

#include "ops/cond_gradients.h"
#include "ops/generators.h"
#include "ops/region_ops.h"

#include <ATen/CPUGeneratorImpl.h>
#include <torch/library.h>

#include <cmath>

namespace pipewright {

static const bool kRegionOperators = RegisterRegionOperators();
static const bool kCondGradients = RegisterCondGradients();

static thread_local RandomKey t_key;

void SetRandomKey(const RandomKey& key) { t_key = key; }
RandomKey CurrentRandomKey() { return t_key; }

// Applies SplitMix64's finalizer (Steele, Lea, Flood: Fast splittable pseudorandom number
// generators, 2014).
static uint64_t Mix(uint64_t x) {
  x += 0x9e3779b97f4a7c15ull;
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9ull;
  x = (x ^ (x >> 27)) * 0x94d049bb133111ebull;
  return x ^ (x >> 31);
}

static thread_local std::map<uint64_t, int64_t>* t_noted = nullptr;

void NoteGenerators(std::map<uint64_t, int64_t>* ids) { t_noted = ids; }

uint64_t SeedOf(const RandomKey& key, int64_t id) {
  uint64_t seed = Mix(key.seed);
  for (uint64_t part : {key.step, key.microbatch, static_cast<uint64_t>(id)})
    seed = Mix(seed ^ part);
  return seed;
}

at::Generator MakeGenerator(c10::Device device, int64_t id) {
  const uint64_t seed = SeedOf(t_key, id);
  if (t_noted) (*t_noted)[seed] = id;
  if (device.is_cpu()) return at::make_generator<at::CPUGeneratorImpl>(seed);
  at::Generator generator = at::globalContext().defaultGenerator(device).clone();
  generator.set_current_seed(seed);
  return generator;
}

// Returns the mask of kept elements, scaled to preserve the mean, with PyTorch's arithmetic.
static at::Tensor Mask(const at::Tensor& like, double p, int64_t id) {
  at::Tensor mask = at::empty_like(like, LEGACY_CONTIGUOUS_MEMORY_FORMAT);
  mask.bernoulli_(1 - p, MakeGenerator(like.device(), id));
  return p < 1 ? mask.div_(1 - p) : mask;
}

static at::Tensor Dropout(const at::Tensor& input, double p, bool train, int64_t id) {
  TORCH_CHECK(p >= 0 && p <= 1, "dropout: p must be between 0 and 1, not ", p);
  if (!train || p == 0 || input.numel() == 0) return input;
  at::Tensor mask;
  {
    at::NoGradGuard guard;
    mask = input.is_meta() ? at::empty_like(input) : Mask(input, p, id);
  }
  return input * mask;
}

// Returns one number per channel, the noise of PyTorch's feature dropout.
static at::Tensor FeatureMask(const at::Tensor& like, double p, int64_t id) {
  TORCH_CHECK(like.dim() >= 2, "feature dropout requires at least 2 dimensions in the input");
  std::vector<int64_t> sizes(static_cast<size_t>(like.dim()), 1);
  sizes[0] = like.size(0), sizes[1] = like.size(1);
  at::Tensor mask = at::empty(sizes, like.options());
  return mask.bernoulli_(1 - p, MakeGenerator(like.device(), id));
}

static at::Tensor FeatureDropout(const at::Tensor& input, double p, bool train, int64_t id) {
  TORCH_CHECK(p >= 0 && p <= 1, "dropout: p must be between 0 and 1, not ", p);
  if (!train || p == 0 || input.numel() == 0) return input;
  at::Tensor mask;
  {
    at::NoGradGuard guard;
    mask = FeatureMask(input, p, id);
    if (p < 1) mask.div_(1 - p);
  }
  return input * mask;
}

// Implements Klambauer et al.: Self-Normalizing Neural Networks (2017), with PyTorch's arithmetic.
static at::Tensor AlphaDropout(const at::Tensor& input, double p, bool train, bool feature,
                               int64_t id) {
  TORCH_CHECK(p >= 0 && p <= 1, "dropout: p must be between 0 and 1, not ", p);
  if (!train || p == 0 || input.numel() == 0) return input;
  if (p == 1) return input.mul(at::zeros({}, input.options()));
  constexpr double kAlpha = 1.7580993408473766;
  double a = 1.0 / std::sqrt((kAlpha * kAlpha * p + 1) * (1 - p));
  at::Tensor mask, shift;
  {
    at::NoGradGuard guard;
    mask = feature ? FeatureMask(input, p, id)
                   : at::empty_like(input, LEGACY_CONTIGUOUS_MEMORY_FORMAT)
                         .bernoulli_(1 - p, MakeGenerator(input.device(), id));
    shift = mask.add(-1).mul_(kAlpha * a).add_(kAlpha * a * p);
    mask.mul_(a);
  }
  return input.mul(mask).add(shift);
}

static at::Tensor PlainAlphaDropout(const at::Tensor& input, double p, bool train, int64_t id) {
  return AlphaDropout(input, p, train, false, id);
}
static at::Tensor FeatureAlphaDropout(const at::Tensor& input, double p, bool train, int64_t id) {
  return AlphaDropout(input, p, train, true, id);
}

static std::tuple<at::Tensor, at::Tensor> NativeDropout(const at::Tensor& input, double p,
                                                        bool train, int64_t id) {
  if (!train || p == 0 || input.numel() == 0)
    return {input, at::ones_like(input, input.options().dtype(at::kBool))};
  at::Tensor mask;
  {
    at::NoGradGuard guard;
    mask = at::empty_like(input, input.options().dtype(at::kBool), LEGACY_CONTIGUOUS_MEMORY_FORMAT)
               .bernoulli_(1 - p, MakeGenerator(input.device(), id));
  }
  return {input * mask * (p < 1 ? 1 / (1 - p) : 0.0), mask};
}

static at::Tensor Attention(const at::Tensor& query, const at::Tensor& key, const at::Tensor& value,
                            const std::optional<at::Tensor>& mask, double p, bool causal,
                            std::optional<double> scale, bool grouped, bool train, int64_t id) {
  if (!train || p == 0)
    return at::scaled_dot_product_attention(query, key, value, mask, 0.0, causal, scale, grouped);
  // Computes as _scaled_dot_product_attention_math does, which PyTorch takes on CPUs: 16-bit
  // tensors in float32, with the scale split over both factors, and 0 for rows that are masked as a
  // whole.
  const at::ScalarType type = query.scalar_type();
  const bool widens = query.is_cpu() && (type == at::kHalf || type == at::kBFloat16);
  auto wide = [&](const at::Tensor& tensor) { return widens ? tensor.to(at::kFloat) : tensor; };
  const double factor = scale.value_or(1.0 / std::sqrt(static_cast<double>(query.size(-1))));
  const double root = std::sqrt(std::abs(factor));
  at::Tensor k = wide(key), v = wide(value);
  if (grouped) {
    k = k.repeat_interleave(query.size(-3) / k.size(-3), -3);
    v = v.repeat_interleave(query.size(-3) / v.size(-3), -3);
  }
  at::Tensor scores =
      at::matmul(wide(query) * std::copysign(root, factor), (k * root).transpose(-2, -1));
  if (causal) {
    at::Tensor keep =
        at::ones({query.size(-2), k.size(-2)}, query.options().dtype(at::kBool)).tril();
    scores = scores.masked_fill(keep.logical_not(), -std::numeric_limits<double>::infinity());
  } else if (mask) {
    scores = mask->scalar_type() == at::kBool
                 ? scores.masked_fill(mask->logical_not(), -std::numeric_limits<double>::infinity())
                 : scores + *mask;
  }
  return at::matmul(Dropout(at::_safe_softmax(scores, -1), p, train, id), v).to(type);
}

static at::Generator GeneratorOf(c10::Device device, int64_t id) {
  return MakeGenerator(device, id);
}

}  // namespace pipewright

TORCH_LIBRARY(pipewright, m) {
  m.def("dropout(Tensor input, float p, bool train, int id) -> Tensor",
        torch::dispatch(c10::DispatchKey::CompositeImplicitAutograd, pipewright::Dropout));
  m.def(
      "scaled_dot_product_attention(Tensor query, Tensor key, Tensor value, Tensor? attn_mask, "
      "float dropout_p, bool is_causal, float? scale, bool enable_gqa, bool train, int id) -> "
      "Tensor",
      torch::dispatch(c10::DispatchKey::CompositeImplicitAutograd, pipewright::Attention));
  m.def("feature_dropout(Tensor input, float p, bool train, int id) -> Tensor",
        torch::dispatch(c10::DispatchKey::CompositeImplicitAutograd, pipewright::FeatureDropout));
  m.def(
      "alpha_dropout(Tensor input, float p, bool train, int id) -> Tensor",
      torch::dispatch(c10::DispatchKey::CompositeImplicitAutograd, pipewright::PlainAlphaDropout));
  m.def("feature_alpha_dropout(Tensor input, float p, bool train, int id) -> Tensor",
        torch::dispatch(c10::DispatchKey::CompositeImplicitAutograd,
                        pipewright::FeatureAlphaDropout));
  m.def("native_dropout(Tensor input, float p, bool train, int id) -> (Tensor, Tensor)",
        torch::dispatch(c10::DispatchKey::CompositeImplicitAutograd, pipewright::NativeDropout));
  m.def("generator(Device device, int id) -> Generator?",
        torch::dispatch(c10::DispatchKey::CompositeImplicitAutograd, pipewright::GeneratorOf));
  m.def(torch::schema("pipe_split() -> ()", c10::AliasAnalysisKind::CONSERVATIVE));
}
TORCH_LIBRARY_IMPL(pipewright, CompositeExplicitAutograd, m) {
  m.impl("pipe_split", [] {});
}

// Conservative, so that nothing is moved across a marker and it is not removed as dead code.
TORCH_LIBRARY_FRAGMENT(pippy, m) {
  m.def(torch::schema("_pipe_split() -> ()", c10::AliasAnalysisKind::CONSERVATIVE));
}
TORCH_LIBRARY_IMPL(pippy, CompositeExplicitAutograd, m) {
  m.impl("_pipe_split", [] {});
}
