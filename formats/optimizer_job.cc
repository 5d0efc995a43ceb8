#include "formats/optimizer_job.h"

#include <fnmatch.h>

#include <algorithm>
#include <cmath>
#include <numbers>
#include <set>
#include <utility>

#include "formats/job_section.h"

namespace pipewright {

namespace {

void ReadRate(const Json& in, const std::string& where, int64_t steps, RateJob& rate) {
  if (!in.is_object()) throw Error(where, "an object is expected, not " + in.dump());
  CheckKeys(in, {"type", "warmup", "steps", "end", "power", "gamma", "every"}, where);
  rate.kind = Choose<RateJob::Kind>(in.contains("type") ? in["type"] : Json("constant"),
                                    {{"constant", RateJob::kConstant},
                                     {"cosine", RateJob::kCosine},
                                     {"linear", RateJob::kLinear},
                                     {"polynomial", RateJob::kPolynomial},
                                     {"step", RateJob::kStep}},
                                    where + ".type");
  auto only = [&](const char* key, bool right) {
    if (in.contains(key) && !right)
      throw Error(where + "." + key, "is not a key of type " + Quote(in.value("type", "constant")));
  };
  only("steps", rate.HasLength()), only("end", rate.HasLength());
  only("power", rate.kind == RateJob::kPolynomial);
  only("gamma", rate.kind == RateJob::kStep), only("every", rate.kind == RateJob::kStep);
  if (rate.kind == RateJob::kStep && !in.contains("every"))
    throw Error(where, "\"every\" is missing: steps between two changes");
  Section section{in, where};
  rate.steps = steps;
  section.AtLeast<int64_t>("warmup", 0, rate.warmup);
  section.AtLeast<int64_t>("steps", 1, rate.steps);
  section.AtLeast<int64_t>("every", 1, rate.every);
  section.Range("end", 0, kAnyNumber, rate.end);
  section.Range("power", 0, kAnyNumber, rate.power);
  section.Range("gamma", 0, kAnyNumber, rate.gamma);
}

void ReadGroups(const Json& in, const std::string& where, OptimizerJob& optimizer) {
  if (!in.is_array()) throw Error(where, "a list is expected, not " + in.dump());
  for (size_t i = 0; i < in.size(); ++i) {
    std::string here = where + "[" + std::to_string(i) + "]";
    if (!in[i].is_object()) throw Error(here, "an object is expected, not " + in[i].dump());
    CheckKeys(in[i], {"match", "lr", "weight_decay"}, here);
    Section section{in[i], here};
    OptimizerJob::Group group;
    group.match = section.Strings("match");
    if (group.match.empty()) throw Error(here, "\"match\" is missing: patterns of parameter names");
    for (auto [key, value] : {std::pair{"lr", &group.lr}, {"weight_decay", &group.weight_decay}})
      if (in[i].contains(key)) section.Range(key, 0, kAnyNumber, value->emplace(0));
    optimizer.groups.push_back(std::move(group));
  }
}

void ReadMuon(const Json& in, const std::string& where, OptimizerJob& optimizer) {
  Section section{in, where};
  section.AtLeast<int>("ns_steps", 0, optimizer.ns_steps, 99);
  if (in.contains("ns_coefficients")) {
    const Json& given = in["ns_coefficients"];
    bool right = given.is_array() && given.size() == 3;
    for (size_t i = 0; right && i < 3; ++i) right = given[i].is_number();
    if (!right)
      throw Error(where + ".ns_coefficients", "three numbers are expected, not " + given.dump());
    for (size_t i = 0; i < 3; ++i) optimizer.ns_coefficients[i] = given[i];
  }
  if (in.contains("adjust_lr_fn"))
    optimizer.adjust_lr = Choose<OptimizerJob::AdjustLr>(
        in["adjust_lr_fn"],
        {{"original", OptimizerJob::kOriginal}, {"match_rms_adamw", OptimizerJob::kMatchRmsAdamW}},
        where + ".adjust_lr_fn");
  const std::string here = where + ".others";
  if (!in.contains("others"))
    throw Error(here, "is missing: the optimizer of parameters that are not matrices",
                R"(for example {"type": "adamw", "lr": 3e-4, "match": ["embedding.*"]})");
  Json others = in["others"];
  if (others.is_object()) {
    optimizer.others_match = Section{in["others"], here}.Strings("match");
    others.erase("match");
    for (const char* key : {"groups", "lr_schedule", "clip_norm", "master_weights", "state"})
      if (others.contains(key))
        throw Error(here + "." + key, "applies to all parameters", "write it beside \"others\"");
  }
  OptimizerJob rest = ReadOptimizer(others, here, 1);
  rest.state_on_disk = optimizer.state_on_disk;
  optimizer.others = std::make_shared<OptimizerJob>(std::move(rest));
  if (optimizer.others->kind == OptimizerJob::kMuon)
    throw Error(here + ".type", "muon is only for matrices", "use adamw, for example");
}

}  // namespace

OptimizerJob ReadOptimizer(const Json& in, const std::string& where, int64_t steps) {
  OptimizerJob optimizer;
  using Job = OptimizerJob;
  if (!in.is_object())
    throw Error(
        where, "an object is expected, not " + in.dump(),
        "for example {\"type\": " + (in.is_string() ? in.dump() : "\"adamw\"") + ", \"lr\": 1e-3}");
  if (!in.contains("type"))
    throw Error(where, "\"type\" is missing: sgd, adam, adamw, rmsprop, adagrad or muon");
  optimizer.kind = Choose<Job::Kind>(in["type"],
                                     {{"sgd", Job::kSgd},
                                      {"adam", Job::kAdam},
                                      {"adamw", Job::kAdamW},
                                      {"rmsprop", Job::kRmsprop},
                                      {"adagrad", Job::kAdagrad},
                                      {"muon", Job::kMuon}},
                                     where + ".type");
  optimizer.type = in["type"].get<std::string>();
  std::vector<std::string> known = {"type",           "lr",        "weight_decay",
                                    "groups",         "clip_norm", "lr_schedule",
                                    "master_weights", "state",     "state_folder"};
  auto add = [&](std::vector<std::string> keys) {
    known.insert(known.end(), keys.begin(), keys.end());
  };
  switch (optimizer.kind) {
    case Job::kSgd:
      add({"momentum", "dampening", "nesterov"});
      break;
    case Job::kAdamW:
      optimizer.weight_decay = 0.01;
      [[fallthrough]];
    case Job::kAdam:
      add({"betas", "eps", "amsgrad"});
      break;
    case Job::kRmsprop:
      optimizer.lr = 1e-2;
      add({"alpha", "eps", "momentum", "centered"});
      break;
    case Job::kAdagrad:
      optimizer.lr = 1e-2, optimizer.eps = 1e-10;
      add({"lr_decay", "eps", "initial_accumulator_value"});
      break;
    case Job::kMuon:
      optimizer.weight_decay = 0.1, optimizer.momentum = 0.95, optimizer.nesterov = true;
      optimizer.eps = 1e-7;
      add({"momentum", "nesterov", "eps", "ns_steps", "ns_coefficients", "adjust_lr_fn", "others"});
      break;
  }
  CheckKeys(in, known, where);
  Section section{in, where};
  section.Range("momentum", 0, kAnyNumber, optimizer.momentum);
  section.Range("dampening", 0, kAnyNumber, optimizer.dampening);
  section.Get("nesterov", optimizer.nesterov);
  if (optimizer.nesterov && optimizer.kind == Job::kSgd &&
      (optimizer.momentum <= 0 || optimizer.dampening != 0))
    throw Error(where + ".nesterov", "needs a momentum and no dampening");
  section.Range("eps", 0, kAnyNumber, optimizer.eps);
  section.Get("amsgrad", optimizer.amsgrad);
  section.Range("alpha", 0, kAnyNumber, optimizer.alpha);
  section.Get("centered", optimizer.centered);
  section.Range("lr_decay", 0, kAnyNumber, optimizer.lr_decay);
  section.Range("initial_accumulator_value", 0, kAnyNumber, optimizer.initial_accumulator);
  if (in.contains("betas")) {
    const Json& betas = in["betas"];
    bool right = betas.is_array() && betas.size() == 2;
    for (size_t i = 0; right && i < 2; ++i)
      right = betas[i].is_number() && betas[i] >= 0.0 && betas[i] < 1.0;
    if (!right)
      throw Error(where + ".betas", "two numbers of [0, 1) are expected, not " + betas.dump());
    optimizer.beta1 = betas[0], optimizer.beta2 = betas[1];
  }
  section.Range("lr", 0, kAnyNumber, optimizer.lr);
  section.Range("weight_decay", 0, kAnyNumber, optimizer.weight_decay);
  section.Range("clip_norm", 0, kAnyNumber, optimizer.clip_norm);
  if (in.contains("clip_norm") && optimizer.clip_norm == 0)
    throw Error(where + ".clip_norm", "0 would remove every gradient",
                "to clip nothing, leave \"clip_norm\" out");
  section.Get("master_weights", optimizer.master_weights);
  if (in.contains("state"))
    optimizer.state_on_disk =
        Choose<bool>(in["state"], {{"memory", false}, {"disk", true}}, where + ".state");
  section.Get("state_folder", optimizer.state_folder);
  if (in.contains("state_folder") && !optimizer.state_on_disk)
    throw Error(where + ".state_folder", "has no effect unless \"state\" is \"disk\"");
  if (in.contains("groups")) ReadGroups(in["groups"], where + ".groups", optimizer);
  if (optimizer.kind == Job::kMuon) ReadMuon(in, where, optimizer);
  if (in.contains("lr_schedule"))
    ReadRate(in["lr_schedule"], where + ".lr_schedule", steps, optimizer.rate);
  return optimizer;
}

std::string OptimizerText(const OptimizerJob& job) {
  if (!job.others) return job.type;
  std::string text = job.type + ", " + job.others->type + " for vectors";
  for (const std::string& pattern : job.others_match) text += " " + pattern;
  return text;
}

RateJob RateOfRun(const RateJob& rate, int64_t steps) {
  RateJob known = rate;
  if (known.steps == 0) known.steps = steps;
  return known;
}

double RateFactor(const RateJob& rate, int64_t step) {
  if (step < rate.warmup) return static_cast<double>(step + 1) / static_cast<double>(rate.warmup);
  double since = static_cast<double>(step - rate.warmup);
  double span = static_cast<double>(std::max<int64_t>(1, rate.steps - rate.warmup));
  double done = std::min(1.0, since / span);
  switch (rate.kind) {
    case RateJob::kConstant:
      return 1;
    case RateJob::kCosine:
      return rate.end + (1 - rate.end) * (1 + std::cos(std::numbers::pi * done)) / 2;
    case RateJob::kLinear:
      return 1 + (rate.end - 1) * done;
    case RateJob::kPolynomial:
      return rate.end + (1 - rate.end) * std::pow(1 - done, rate.power);
    case RateJob::kStep:
      return std::pow(rate.gamma, std::floor(since / static_cast<double>(rate.every)));
  }
  return 1;
}

bool MatchesAny(const std::vector<std::string>& patterns, const std::vector<std::string>& names) {
  for (const std::string& pattern : patterns)
    for (const std::string& name : names)
      if (fnmatch(pattern.c_str(), name.c_str(), 0) == 0) return true;
  return false;
}

OptimizerJob OptimizerFor(const OptimizerJob& job, const std::vector<std::string>& names,
                          bool matrix) {
  const bool other = job.others && (!matrix || MatchesAny(job.others_match, names));
  OptimizerJob result = other ? *job.others : job;
  for (const OptimizerJob::Group& group : job.groups) {
    if (!MatchesAny(group.match, names)) continue;
    result.lr = group.lr.value_or(result.lr);
    result.weight_decay = group.weight_decay.value_or(result.weight_decay);
    break;
  }
  return result;
}

std::vector<std::string> NamesOf(const Manifest& manifest, const std::string& name) {
  for (const std::vector<std::string>& names : manifest.tied)
    if (std::find(names.begin(), names.end(), name) != names.end()) return names;
  return {name};
}

// Throws Error for a pattern that matches no parameter.
static void CheckPatterns(const Manifest& manifest, const std::vector<std::string>& patterns,
                          const std::string& where) {
  std::vector<std::string> names;
  for (const ModuleInfo& module : manifest.modules)
    for (const WeightInfo& info : module.held)
      if (info.kind == WeightKind::kParameter)
        for (const std::string& name : NamesOf(manifest, info.name)) names.push_back(name);
  for (const std::string& pattern : patterns)
    if (!MatchesAny({pattern}, names))
      throw Error(where, "\"" + pattern + "\" matches no parameter" + Suggest(pattern, names),
                  "patterns are shell patterns for the whole name: \"blocks.0.*\"");
}

void CheckGroups(const Manifest& manifest, const OptimizerJob& job, const std::string& where) {
  CheckPatterns(manifest, job.others_match, where + ".others.match");
  for (size_t i = 0; i < job.groups.size(); ++i)
    CheckPatterns(manifest, job.groups[i].match,
                  where + ".groups[" + std::to_string(i) + "].match");
}

void Freeze(Manifest& manifest, const std::vector<std::string>& patterns,
            const std::string& where) {
  CheckPatterns(manifest, patterns, where);
  bool any = patterns.empty();
  for (ModuleInfo& module : manifest.modules) {
    bool trained = false;
    for (int id : module.inputs)
      trained |= manifest.values[id].gradient && manifest.values[id].producer >= 0;
    for (WeightInfo& info : module.held) {
      if (info.requires_grad && MatchesAny(patterns, NamesOf(manifest, info.name)))
        info.requires_grad = false;
      trained |= info.requires_grad;
      any |= info.requires_grad;
    }
    if (trained) continue;
    for (int id : module.outputs) manifest.values[id].gradient = false;
  }
  if (!any) throw Error(where, "freezes every parameter: nothing is left to train");
}

std::vector<std::string> UntrainedModules(const Manifest& manifest) {
  auto heard = [&](const ModuleInfo& module) {
    return std::any_of(module.outputs.begin(), module.outputs.end(),
                       [&](int id) { return manifest.values[id].gradient; });
  };
  std::set<std::pair<int, std::string>> elsewhere;  // trained through another holder
  for (const SharedWeight& weight : manifest.shared)
    for (const SharedWeight::Holder& one : weight.holders)
      if (heard(manifest.modules[one.module]))
        for (const SharedWeight::Holder& other : weight.holders)
          elsewhere.emplace(other.module, other.name);
  std::vector<std::string> notes;
  for (size_t m = 0; m < manifest.modules.size(); ++m) {
    const ModuleInfo& module = manifest.modules[m];
    if (heard(module)) continue;
    auto found = std::find_if(module.held.begin(), module.held.end(), [&](const WeightInfo& w) {
      return w.requires_grad && !elsewhere.count({static_cast<int>(m), w.name});
    });
    if (found == module.held.end()) continue;
    notes.push_back(module.name + ": " + found->name +
                    " requires a gradient, but nothing that the module puts out carries one, so "
                    "it is not trained; to train what was frozen when the model was compiled, "
                    "compile it again with requires_grad");
  }
  return notes;
}

}  // namespace pipewright
