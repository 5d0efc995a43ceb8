#include "runtime/trial/shapes.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <optional>

#include "base/dtype.h"
#include "base/error.h"
#include "base/symbol.h"
#include "base/text.h"
#include "formats/call_text.h"
#include "formats/package/package_files.h"
#include "runtime/module/module_code.h"
#include "runtime/trial/trial.h"
#include "tensors/dtype.h"

namespace pipewright {

namespace {

bool Same(const TensorSpec& a, const TensorSpec& b) {
  return a.type == b.type && a.sizes == b.sizes;
}

bool IsSymbol(const std::string& size) {
  return !size.empty() && std::isalpha(static_cast<unsigned char>(size[0])) &&
         std::all_of(size.begin(), size.end(),
                     [](unsigned char c) { return std::isalnum(c) || c == '_'; });
}

std::string Shown(const ValueInfo& value) { return "[" + Join(value.shape, ", ") + "]"; }

std::string RangeText(const std::pair<int64_t, int64_t>& range) {
  const std::string least = std::to_string(range.first);
  return range.second == INT64_MAX ? least + " or more"
                                   : least + " to " + std::to_string(range.second);
}

// Returns how to order the dimensions, such as those of images with channels last, so that they
// fit the numbers among `wanted`; "" if no order fits.
std::string OrderHint(const std::vector<std::string>& wanted, const std::vector<int64_t>& sizes) {
  constexpr size_t kMost = 6;
  if (wanted.size() != sizes.size() || sizes.size() < 2 || sizes.size() > kMost) return "";
  const auto is_number = [](const std::string& size) {
    return size.find_first_not_of("0123456789") == std::string::npos;
  };
  std::vector<std::string> order;
  for (size_t d = 0; d < sizes.size(); ++d) order.push_back(std::to_string(d));
  while (std::next_permutation(order.begin(), order.end())) {
    bool fits = true;
    for (size_t d = 0; d < wanted.size(); ++d)
      fits =
          fits && (!is_number(wanted[d]) || wanted[d] == std::to_string(sizes[order[d][0] - '0']));
    if (fits)
      return "; its dimensions would fit in another order: x.permute(" + Join(order, ", ") +
             ").contiguous()";
  }
  return "";
}

// A tensor input of the model, and the sizes passed for it.
struct GivenInput {
  const ValueInfo& value;
  const std::vector<int64_t>& sizes;

  std::string where() const { return "input \"" + value.name + "\""; }
  std::string has() const { return "has sizes " + ShapeText(sizes); }
  std::string takes() const {
    return has() + ", the model takes " + Shown(value) + OrderHint(value.shape, sizes);
  }
};

// Returns the inputs whose sizes the model records.
std::vector<GivenInput> GivenInputs(const Manifest& manifest,
                                    const std::vector<TensorSpec>& inputs) {
  std::vector<GivenInput> given;
  for (size_t i = 0; i < inputs.size(); ++i) {
    const ValueInfo& value = manifest.values[manifest.inputs[i]];
    if (value.kind != ValueKind::kTensor || value.dtype.empty()) continue;
    given.push_back({value, inputs[i].sizes});
    if (DtypeOf(value.dtype) != inputs[i].type)
      throw Error(given.back().where(),
                  "is " + DtypeName(inputs[i].type) + ", the model takes " + value.dtype,
                  "save it as " + value.dtype + "; " + CallText(manifest));
    if (value.shape.size() != inputs[i].sizes.size())
      throw Error(given.back().where(), given.back().takes(), CallText(manifest));
  }
  return given;
}

// Binds sizes that are a symbol and checks sizes that are a number.
void BindPlainSizes(const Manifest& manifest, const GivenInput& input,
                    std::map<std::string, int64_t>& symbols) {
  for (size_t d = 0; d < input.sizes.size(); ++d) {
    const std::string& wanted = input.value.shape[d];
    const int64_t size = input.sizes[d];
    if (IsSymbol(wanted)) {
      auto [at, fresh] = symbols.emplace(wanted, size);
      if (!fresh && at->second != size)
        throw Error(input.where(), input.has() + ", but its dimension " + std::to_string(d) +
                                       " is " + std::to_string(at->second) +
                                       " in an input before it");
      auto range = manifest.symbols.find(wanted);
      if (range != manifest.symbols.end() &&
          (size < range->second.first || size > range->second.second))
        throw Error(input.where(),
                    input.has() + "; its dimension " + std::to_string(d) + " was exported for " +
                        RangeText(range->second),
                    "export it for a wider range; the job's minibatch_size and microbatches say "
                    "how many samples a microbatch has");
    } else if (wanted.find_first_not_of("0123456789") == std::string::npos &&
               wanted != std::to_string(size)) {
      throw Error(input.where(), input.takes(),
                  CallText(manifest) +
                      ": export it with a dynamic dimension, or give it data of this size" +
                      (d == 0 ? " (the number of samples in the job's microbatches)" : ""));
    }
  }
}

// Solves sizes that were exported as multiples: 2*s0 determines s0.
void SolveSizes(const Manifest& manifest, const GivenInput& input,
                std::map<std::string, int64_t>& symbols) {
  for (size_t d = 0; d < input.sizes.size(); ++d) {
    std::optional<std::pair<std::string, int64_t>> solved;
    try {
      solved = SolveSize(input.value.shape[d], input.sizes[d], symbols);
    } catch (const Error& e) {
      throw Error(input.where(), input.takes() + ": " + e.what(), "give it data of another size");
    }
    if (!solved) continue;
    auto range = manifest.symbols.find(solved->first);
    if (range != manifest.symbols.end() &&
        (solved->second < range->second.first || solved->second > range->second.second))
      throw Error(input.where(),
                  input.has() + "; its dimension " + std::to_string(d) + " is " +
                      input.value.shape[d] + ", exported for " + solved->first + " of " +
                      RangeText(range->second),
                  "export it for a wider range");
    symbols.insert(*solved);
  }
}

void CheckSizes(const GivenInput& input, const std::map<std::string, int64_t>& symbols) {
  for (size_t d = 0; d < input.sizes.size(); ++d) {
    int64_t size = input.sizes[d];
    try {
      size = EvaluateSize(input.value.shape[d], symbols);
    } catch (const Error&) {  // unknown; the model checks it at run time
    }
    if (size != input.sizes[d])
      throw Error(input.where(), input.takes() + ", where " + input.value.shape[d] + " is " +
                                     std::to_string(size) + " according to the other sizes");
  }
}

// Refuses sizes for which the export recorded another forward.
void CheckGuards(const Manifest& manifest, const std::vector<GivenInput>& given,
                 const std::map<std::string, int64_t>& symbols) {
  for (const std::string& guard : manifest.guards) {
    // A run leaves out inputs that its outputs do not need.
    const std::vector<std::string> used = SymbolsOf(guard);
    if (std::any_of(used.begin(), used.end(), [&](const std::string& word) {
          return manifest.symbols.count(word) && !symbols.count(word);
        }))
      continue;
    bool holds = false;
    try {
      holds = EvaluateCondition(guard, symbols);
    } catch (const Error&) {  // it divides by zero
    }
    if (holds) continue;
    std::vector<std::string> sizes;
    for (const GivenInput& input : given)
      sizes.push_back(input.value.name + " " + Shown(input.value) + " is " +
                      ShapeText(input.sizes));
    throw Error("inputs", "the export holds only for " + guard + "; " + Join(sizes, ", "),
                "give it such sizes, or export the model again for these");
  }
}

// Returns the values of the symbols, from the inputs that are given.
std::map<std::string, int64_t> BindSymbols(const Manifest& manifest,
                                           const std::vector<TensorSpec>& inputs) {
  std::map<std::string, int64_t> symbols;
  const std::vector<GivenInput> given = GivenInputs(manifest, inputs);
  for (const GivenInput& input : given) BindPlainSizes(manifest, input, symbols);
  for (const GivenInput& input : given) SolveSizes(manifest, input, symbols);
  for (const GivenInput& input : given) CheckSizes(input, symbols);
  CheckGuards(manifest, given, symbols);
  return symbols;
}

TensorSpec FromManifest(const ValueInfo& value, const std::map<std::string, int64_t>& symbols) {
  if (value.kind == ValueKind::kInt) return {at::kLong, {}, true};
  if (value.kind == ValueKind::kFloat) return {at::kDouble, {}, true};
  if (value.kind == ValueKind::kBool) return {at::kBool, {}, true};
  if (value.dtype.empty()) return {at::kFloat, {}, false};
  TensorSpec spec{DtypeOf(value.dtype), {}, true};
  try {
    for (const std::string& size : value.shape) spec.sizes.push_back(EvaluateSize(size, symbols));
  } catch (const Error&) {
    return {spec.type, {}, false};  // has a symbol that no input binds
  }
  return spec;
}

struct Inferred {
  std::vector<TensorSpec> specs;          // by value id
  std::vector<std::string> changed;  // see ChangedOutputs
};

// Returns a message that edited code at `line` returns a value as `found`, unlike the manifest.
std::string ReturnsOther(const std::string& line, const ValueInfo& value, const TensorSpec& found) {
  return line + ": returns " + value.name + " " + DtypeName(found.type) + " " +
         ShapeText(found.sizes) + ", manifest.json says " + value.dtype + " " + Shown(value);
}

// Infers all sizes, running modules in `trial` if need be.
Inferred Infer(Trial trial, const std::vector<TensorSpec>& given,
               const std::map<std::string, int64_t>& symbols) {
  const std::string& package = trial.package;
  const Manifest& manifest = trial.manifest;
  Inferred inferred{given, {}};
  std::vector<TensorSpec>& specs = inferred.specs;
  std::vector<bool> changed(manifest.values.size(), false);
  std::string blame;
  bool unknown = false;  // some sizes are not in the model file
  for (const ValueInfo& value : manifest.values)
    unknown = unknown || (value.kind == ValueKind::kTensor && value.dtype.empty());
  for (size_t m = 0; m < manifest.modules.size(); ++m) {
    const ModuleInfo& info = manifest.modules[m];
    if (info.skipped) continue;
    const bool edited = IsEdited(package, info);
    bool takes_changed = false;
    for (int id : info.inputs) takes_changed = takes_changed || changed[id];
    const bool anew = unknown || edited || takes_changed;
    if (anew || trial.real)
      Try(trial, static_cast<int>(m), specs, anew, edited, takes_changed ? blame : "");
    for (int id : info.outputs) {
      const TensorSpec recorded = FromManifest(manifest.values[id], symbols);
      if (!anew || manifest.values[id].kind != ValueKind::kTensor) specs[id] = recorded;
      changed[id] = anew && !manifest.values[id].dtype.empty() && !Same(specs[id], recorded);
      if (!changed[id] || !edited) continue;
      const std::string returns = ReturnsOther(trial.made_at[id], manifest.values[id], specs[id]);
      if (blame.empty())
        blame = returns + "\n  return it like that, or edit the modules that take it, too";
      if (recorded.known || specs[id].type != recorded.type)
        inferred.changed.push_back(
            returns + "\n  return it like that or, if that is intended, change manifest.json");
    }
  }
  return inferred;
}

Inferred InferAll(const std::string& package, const Manifest& manifest,
                  const std::vector<TensorSpec>& inputs, const EditObserver& observe) {
  const std::map<std::string, int64_t> symbols = BindSymbols(manifest, inputs);
  std::vector<TensorSpec> specs(manifest.values.size());
  for (size_t i = 0; i < inputs.size(); ++i) specs[manifest.inputs[i]] = inputs[i];
  Trial zeros_trial{package, manifest};
  zeros_trial.observe = observe;
  try {
    return Infer(std::move(zeros_trial), specs, symbols);
  } catch (const TrialError& zeros) {  // code may reject zeros: singular matrices, empty masks
    Trial real = RealTrial(package, manifest, specs);
    real.observe = observe;
    const bool samples = real.samples;
    try {
      return Infer(std::move(real), specs, symbols);
    } catch (const TrialError& made_up) {
      // A module that accepted zeros rejects generated numbers, which is not its own fault.
      if (!samples && made_up.module < zeros.module) throw zeros;
      throw;
    }
  }
}

}  // namespace

int64_t TensorSpec::bytes() const {
  int64_t count = static_cast<int64_t>(c10::elementSize(type));
  for (int64_t size : sizes) count *= size;
  return count;
}

std::vector<TensorSpec> InferShapes(const std::string& package, const Manifest& manifest,
                                    const std::vector<TensorSpec>& inputs) {
  return InferShapesAndObserve(package, manifest, inputs, {});
}

std::vector<TensorSpec> InferShapesAndObserve(const std::string& package, const Manifest& manifest,
                                              const std::vector<TensorSpec>& inputs,
                                              const EditObserver& observe) {
  return InferAll(package, manifest, inputs, observe).specs;
}

std::vector<std::string> ChangedOutputs(const std::string& package, const Manifest& manifest,
                                        const std::vector<TensorSpec>& inputs) {
  return InferAll(package, manifest, inputs, {}).changed;
}

std::shared_ptr<const std::vector<TensorSpec>> ShapeCache::Of(
    const std::vector<TensorSpec>& inputs) {
  std::string key;
  for (const TensorSpec& input : inputs)
    key += std::to_string(static_cast<int>(input.type)) + ShapeText(input.sizes);
  if (auto found = found_.find(key); found != found_.end()) {
    entries_.splice(entries_.begin(), entries_, found->second);
    return entries_.front().second;
  }
  entries_.emplace_front(key, std::make_shared<const std::vector<TensorSpec>>(
                                  InferShapes(package_, manifest_, inputs)));
  found_[key] = entries_.begin();
  if (entries_.size() > capacity_) {
    found_.erase(entries_.back().first);
    entries_.pop_back();
  }
  return entries_.front().second;
}

}  // namespace pipewright
