#include "runtime/not_finite.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <utility>
#include <vector>

#include "base/error.h"
#include "base/json.h"
#include "formats/weights/checkpoint.h"
#include "formats/weights/safetensors.h"
#include "runtime/module/stored_weights.h"
#include "tensors/device_memory.h"
#include "tensors/dtype.h"
#include "tensors/finite.h"

namespace pipewright {

namespace {

// A finding of one rank. Kinds are in the order in which one makes another not finite.
struct Finding {
  enum Kind { kSample, kWeight, kValue, kLoss, kGradient } kind;
  std::vector<int64_t> order;  // among those of its kind
  std::string text, cure;
};

std::string PlaceText(const Session& session, int stage, int64_t microbatch = -1) {
  return "rank " + std::to_string(session.transport.rank()) + ", stage " + std::to_string(stage) +
         (microbatch < 0 ? "" : ", microbatch " + std::to_string(microbatch)) + ": ";
}

// Returns the weight as the run began with it, before any checkpoint.
at::Tensor AsLoaded(const Session& session, int module, size_t index) {
  const ModuleInfo& info = session.run.manifest.modules[module];
  const WeightInfo& weight = info.held[index];
  const at::Tensor loaded = at::empty(weight.shape, DtypeOf(weight.dtype));
  if (session.options.weights.empty() || !weight.persistent) {
    const SafetensorsFile file(session.options.package + "/" + info.weights);
    ReadInto(file, file.At(weight.name), loaded);
    return loaded;
  }
  const Checkpoint checkpoint = OpenCheckpoint(session.options.weights);
  Filler filler(loaded);
  ReadTensor(checkpoint, StoredWeight(checkpoint, session.run.manifest, weight),
             [&](std::string_view piece) { filler.Add(piece); });
  return loaded;
}

// Returns true if all NaN and infinity were there when the weight was loaded.
bool IsAsLoaded(const Session& session, int module, size_t index, const at::Tensor& now) {
  const at::Tensor before = AsLoaded(session, module, index);
  return !(at::isfinite(before) & ~at::isfinite(OnHost(now))).any().item<bool>();
}

void AddSample(const Session& session, Microbatches& source, int64_t step,
               std::vector<Finding>& found) {
  const Job& job = session.job;
  for (int64_t b = step * job.accumulate; b < (step + 1) * job.accumulate; ++b)
    for (int m = 0; m < job.microbatches; ++m)
      if (const std::string sample = source.NotFinite(b, m); !sample.empty()) {
        found.push_back({Finding::kSample,
                         {b, m},
                         "microbatch " + std::to_string(m) + ": " + sample,
                         "fix the sample or leave it out, or let the job go on with \"nan\": "
                         "\"ignore\""});
        return;
      }
}

void AddWeight(const Session& session, std::vector<Finding>& found) {
  const Manifest& manifest = session.run.manifest;
  for (size_t m = 0; m < manifest.modules.size(); ++m)
    for (size_t w = 0; w < manifest.modules[m].held.size(); ++w) {
      const int module = static_cast<int>(m);
      const WeightInfo& info = manifest.modules[m].held[w];
      if (info.kind != WeightKind::kParameter || !session.stages->Holds(module)) continue;
      const at::Tensor weight = session.stages->Weight(module, info.name);
      const std::string what = NotFinite(weight);
      if (what.empty()) continue;
      const bool loaded = IsAsLoaded(session, module, w, weight);
      if (loaded && what != "nan") continue;  // for example, an attention mask
      found.push_back(
          {Finding::kWeight,
           {module, static_cast<int64_t>(w)},
           PlaceText(session, session.run.conf.module_to_stage[m]) + "weight \"" + info.name +
               "\" holds " + what +
               (loaded ? ", as it was loaded" : ", which an earlier step made"),
           loaded ? "load weights that are finite (pipewright weights list)" : kNotFiniteCure});
      return;
    }
}

void AddValue(const Session& session, std::vector<Finding>& found) {
  const std::optional<BadValue>& value = session.stages->bad_value();
  if (!value) return;
  const ModuleInfo& module = session.run.manifest.modules[value->module];
  found.push_back(
      {Finding::kValue,
       {value->minibatch, value->microbatch, value->module},
       PlaceText(session, session.run.conf.module_to_stage[value->module], value->microbatch) +
           "value \"" + value->name + "\" holds " + value->what + ", the first to do so",
       "look for what makes it in " + module.code + "; " + kNotFiniteCure});
}

void AddLoss(const Session& session, const std::optional<BadLoss>& loss,
             std::vector<Finding>& found) {
  if (!loss) return;
  found.push_back({Finding::kLoss,
                   {loss->minibatch, loss->microbatch, loss->loss},
                   PlaceText(session, session.stages->loss_stages()[loss->loss], loss->microbatch) +
                       "the loss is " + std::to_string(loss->value),
                   kNotFiniteCure});
}

// Reports the last one in the model, which backward reached first.
void AddGradient(const Session& session, std::vector<Finding>& found) {
  const std::vector<std::pair<int, size_t>> bad = session.stages->updater().NotFinite();
  if (bad.empty()) return;
  const auto [module, index] = *std::max_element(
      bad.begin(), bad.end(), [](const auto& a, const auto& b) { return a.first < b.first; });
  found.push_back({Finding::kGradient,
                   {-module, static_cast<int64_t>(index)},
                   PlaceText(session, session.run.conf.module_to_stage[module]) +
                       "the gradient of \"" +
                       session.run.manifest.modules[module].held[index].name + "\" holds " +
                       NotFinite(session.stages->updater().WaitingGradient(module, index)),
                   kNotFiniteCure});
}

}  // namespace

std::optional<BadLoss> FindBadLoss(const Session& session, int64_t minibatch) {
  const LossTerms& terms = session.stages->terms();
  for (size_t m = 0; !terms.empty() && m < terms[0].size(); ++m)
    for (size_t k = 0; k < terms.size(); ++k)
      if (const double value = terms[k][m].loss; !std::isfinite(value))
        return BadLoss{minibatch, static_cast<int>(m), static_cast<int>(k), value};
  return std::nullopt;
}

bool MustStop(const Session& session) {
  if (!session.job.stop_on_nan) return false;
  const StepOutcome& outcome = session.outcome;
  // With such a small loss scale, lowering it further cannot prevent the overflow.
  const bool scaled_away =
      outcome.skipped && session.loss_scale < std::numeric_limits<float>::min();
  return outcome.bad_loss || (outcome.not_finite && !outcome.skipped) || scaled_away;
}

void ThrowNotFinite(Session& session, Microbatches& source, int64_t step,
                    const std::optional<BadLoss>& loss) {
  at::NoGradGuard no_grad;
  std::vector<Finding> found;
  AddSample(session, source, step, found);
  AddWeight(session, found);
  AddValue(session, found);
  AddLoss(session, loss, found);
  AddGradient(session, found);
  Json mine = Json::array();
  for (const Finding& one : found)
    mine.push_back({static_cast<int>(one.kind), one.order, one.text, one.cure});
  auto order = [](const Json& one) {
    return std::pair(one[0].get<int>(), one[1].get<std::vector<int64_t>>());
  };
  Json first;
  for (const std::string& of_rank : session.transport.AllGather(mine.dump()))
    for (const Json& one : Json::parse(of_rank))
      if (first.is_null() || order(one) < order(first)) first = one;
  session.told_not_finite = true;
  const std::string place = "step " + std::to_string(step + 1) + ", ";
  if (first.is_null()) throw Error(place + "the gradients", "are not finite", kNotFiniteCure);
  const std::string text = place + first[2].get<std::string>() + "\n  " + first[3].get<std::string>();
  // An error that all ranks agree on causes no restart, which would read the same sample.
  if (first[0] == static_cast<int>(Finding::kSample)) throw AgreedError(text);
  throw Error(text);
}

void CheckSaved(const Session& session, const std::string& name, const at::Tensor& tensor) {
  if (!session.job.stop_on_nan || AllFinite(tensor)) return;
  const std::map<std::string, NamedWeight> weights = ParametersAndBuffers(session.run.manifest);
  auto weight = weights.find(name);
  const size_t slash = name.find('/');
  const std::string part = slash == std::string::npos ? "" : name.substr(0, slash);
  // The state of an optimizer begins with zeros, except for copies of weights.
  if (weight == weights.end() && (part == "buffer" || part == "master"))
    weight = weights.find(name.substr(slash + 1));
  if (weight != weights.end() &&
      IsAsLoaded(session, weight->second.module, weight->second.index, tensor))
    return;
  throw Error("\"" + name + "\"", "holds " + NotFinite(tensor) + ", which training has made",
              kNotFiniteCure);
}

void CheckSavedWeights(const Session& session) {
  for (const auto& [name, at] : ParametersAndBuffers(session.run.manifest)) {
    const WeightInfo& info = session.run.manifest.modules[at.module].held[at.index];
    if (!session.stages->Holds(at.module) || session.run.on_disk[at.module][at.index]) continue;
    CheckSaved(session, name, session.stages->Weight(at.module, info.name));
  }
}

}  // namespace pipewright
