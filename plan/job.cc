#include "plan/job.h"

#include <filesystem>

#include "plan/error.h"
#include "plan/json.h"
#include "plan/text.h"

namespace pipewright {

namespace {

// One object of the file: typed, ranged getters whose errors name the key.
struct Section {
  const Json& in;
  std::string where;  // "job.json: optimizer"

  std::string Key(const char* key) const { return where + "." + key; }

  template <typename T>
  void Get(const char* key, T& out) const {
    auto found = in.find(key);
    if (found == in.end()) return;
    bool right = true;
    const char* kind = "";
    if constexpr (std::is_same_v<T, bool>)
      right = found->is_boolean(), kind = "true or false";
    else if constexpr (std::is_same_v<T, std::string>)
      right = found->is_string(), kind = "a string";
    else if constexpr (std::is_floating_point_v<T>)
      right = found->is_number(), kind = "a number";
    else
      right = found->is_number_integer(), kind = "a whole number";
    if (!right) throw Error(Key(key), std::string(kind) + " is expected, not " + found->dump());
    out = found->template get<T>();
  }

  template <typename T>
  void AtLeast(const char* key, T least, T& out) const {
    int64_t wide = static_cast<int64_t>(out);
    Get(key, wide);
    if (wide < static_cast<int64_t>(least) || static_cast<int64_t>(static_cast<T>(wide)) != wide)
      throw Error(Key(key),
                  std::to_string(wide) + " is out of range: at least " + std::to_string(least));
    out = static_cast<T>(wide);
  }

  void Range(const char* key, double low, double below, double& out) const {
    Get(key, out);
    if (!(out >= low && out < below))
      throw Error(Key(key), Json(out).dump() + " is out of range: at least " + Json(low).dump() +
                                (below < 1e300 ? ", below " + Json(below).dump() : ""));
  }
};

template <typename T>
T Choose(const Json& value, const std::vector<std::pair<std::string, T>>& choices,
         const std::string& where) {
  std::vector<std::string> names;
  for (const auto& [name, choice] : choices) {
    if (value == name) return choice;
    names.push_back(name);
  }
  std::string text = value.is_string() ? value.get<std::string>() : value.dump();
  throw Error(where, "\"" + text + "\" is not known" + Suggest(text, names),
              "known: " + Join(names, ", "));
}

constexpr double kAny = 1e308;

void ReadData(const Json& in, const std::string& where, DataJob& data) {
  CheckKeys(in, {"tokens", "dtype", "sequence_length", "tensors", "inputs", "target", "shuffle"},
            where);
  Section section{in, where};
  section.Get("tokens", data.tokens);
  section.Get("tensors", data.tensors);
  section.Get("target", data.target);
  section.Get("shuffle", data.shuffle);
  if (data.tokens.empty() == data.tensors.empty())
    throw Error(where,
                "name one source: \"tokens\" (a token file) or \"tensors\" (a safetensors file)");
  if (in.contains("dtype"))
    data.token_bytes =
        Choose<int>(in["dtype"], {{"u8", 1}, {"u16", 2}, {"u32", 4}}, section.Key("dtype"));
  bool tokens = !data.tokens.empty();
  for (const char* key : {"dtype", "sequence_length"})
    if (!tokens && in.contains(key)) throw Error(section.Key(key), "only a token file has one");
  for (const char* key : {"inputs", "target"})
    if (tokens && in.contains(key))
      throw Error(section.Key(key), "a token file needs none: the target is the next token");
  if (tokens) {
    if (!in.contains("sequence_length"))
      throw Error(where, "\"sequence_length\" is missing: tokens per sample");
    section.AtLeast<int64_t>("sequence_length", 1, data.sequence_length);
    return;
  }
  if (!in.contains("inputs") || !in["inputs"].is_object() || in["inputs"].empty())
    throw Error(where, "\"inputs\" is missing: {\"<model input>\": \"<tensor name>\"}");
  for (const auto& [input, tensor] : in["inputs"].items()) {
    if (!tensor.is_string())
      throw Error(where + ".inputs." + input, "a tensor's name is expected, not " + tensor.dump());
    data.inputs[input] = tensor.get<std::string>();
  }
}

void ReadLoss(const Json& in, const std::string& where, LossJob& loss) {
  static const std::vector<std::pair<std::string, LossJob::Kind>> kinds = {
      {"cross_entropy", LossJob::kCrossEntropy}, {"mse", LossJob::kMse}};
  if (in.is_string()) {
    loss.kind = Choose(in, kinds, where);
    return;
  }
  CheckKeys(in, {"type", "output"}, where);
  loss.kind = in.contains("type") ? Choose(in["type"], kinds, where + ".type") : LossJob::kOutput;
  if (loss.kind == LossJob::kOutput && !in.contains("output"))
    throw Error(where, "\"type\" or \"output\" is missing");
  Section{in, where}.AtLeast<int>("output", 0, loss.output);
}

void ReadOptimizer(const Json& in, const std::string& where, OptimizerJob& optimizer) {
  if (!in.is_object() || !in.contains("type"))
    throw Error(where, "\"type\" is missing: sgd or adamw");
  optimizer.kind = Choose<OptimizerJob::Kind>(
      in["type"], {{"sgd", OptimizerJob::kSgd}, {"adamw", OptimizerJob::kAdamW}}, where + ".type");
  optimizer.type = in["type"].get<std::string>();
  Section section{in, where};
  if (optimizer.kind == OptimizerJob::kSgd) {
    CheckKeys(in, {"type", "lr", "momentum", "dampening", "nesterov", "weight_decay"}, where);
    section.Range("momentum", 0, kAny, optimizer.momentum);
    section.Range("dampening", 0, kAny, optimizer.dampening);
    section.Get("nesterov", optimizer.nesterov);
    if (optimizer.nesterov && (optimizer.momentum <= 0 || optimizer.dampening != 0))
      throw Error(where + ".nesterov", "needs a momentum and no dampening");
  } else {
    CheckKeys(in, {"type", "lr", "betas", "eps", "weight_decay"}, where);
    optimizer.weight_decay = 0.01;
    section.Range("eps", 0, kAny, optimizer.eps);
    if (in.contains("betas")) {
      const Json& betas = in["betas"];
      bool right = betas.is_array() && betas.size() == 2;
      for (size_t i = 0; right && i < 2; ++i)
        right = betas[i].is_number() && betas[i] >= 0.0 && betas[i] < 1.0;
      if (!right)
        throw Error(where + ".betas", "two numbers of [0, 1) are expected, not " + betas.dump());
      optimizer.beta1 = betas[0], optimizer.beta2 = betas[1];
    }
  }
  section.Range("lr", 0, kAny, optimizer.lr);
  section.Range("weight_decay", 0, kAny, optimizer.weight_decay);
}

void ReadCheckpoint(const Json& in, const std::string& where, CheckpointJob& checkpoint) {
  if (!in.is_object() || !in.contains("to"))
    throw Error(where, "\"to\" is missing: the folder that checkpoints go to");
  CheckKeys(in, {"to", "every", "keep"}, where);
  Section section{in, where};
  section.Get("to", checkpoint.folder);
  if (checkpoint.folder.empty()) throw Error(where + ".to", "names no folder");
  if (in.contains("every")) section.AtLeast<int64_t>("every", 1, checkpoint.every = 1);
  section.AtLeast<int64_t>("keep", 0, checkpoint.keep);
}

}  // namespace

Job ReadJob(const std::string& path) {
  std::string text = ReadFile(path);
  Json in = ParseJson(text, path);
  CheckKeys(
      in,
      {"data", "loss", "optimizer", "schedule", "plan", "microbatches", "microbatch_size", "steps",
       "seed", "threads", "log_every", "save", "metrics", "nan", "check_shared", "checkpoint"},
      path);
  Job job;
  job.path = path;
  job.text = text;
  for (const char* key : {"data", "loss", "optimizer", "microbatches", "microbatch_size"})
    if (!in.contains(key)) throw Error(path, std::string("the key \"") + key + "\" is missing");
  ReadData(in["data"], path + ": data", job.data);
  ReadLoss(in["loss"], path + ": loss", job.loss);
  ReadOptimizer(in["optimizer"], path + ": optimizer", job.optimizer);
  if (in.contains("checkpoint"))
    ReadCheckpoint(in["checkpoint"], path + ": checkpoint", job.checkpoint);
  Section section{in, path};
  section.Get("schedule", job.schedule);
  section.Get("plan", job.plan);
  section.AtLeast<int>("microbatches", 1, job.microbatches);
  section.AtLeast<int64_t>("microbatch_size", 1, job.microbatch_size);
  section.AtLeast<int64_t>("steps", 0, job.steps);
  section.AtLeast<int>("threads", 1, job.threads);
  section.AtLeast<int64_t>("log_every", 1, job.log_every);
  int64_t seed = 0;
  section.AtLeast<int64_t>("seed", 0, seed);
  job.seed = static_cast<uint64_t>(seed);
  section.Get("save", job.save);
  section.Get("metrics", job.metrics);
  section.Get("check_shared", job.check_shared);
  if (in.contains("nan"))
    job.stop_on_nan =
        Choose<bool>(in["nan"], {{"stop", true}, {"ignore", false}}, section.Key("nan"));
  bool target = !job.data.tokens.empty() || !job.data.target.empty();
  if (job.loss.kind != LossJob::kOutput && !target)
    throw Error(path + ": data", "\"target\" is missing: the loss compares an output with it");

  std::filesystem::path folder = std::filesystem::path(path).parent_path();
  for (std::string* file : {&job.data.tokens, &job.data.tensors, &job.save, &job.metrics, &job.plan,
                            &job.checkpoint.folder})
    if (!file->empty()) *file = (folder / *file).lexically_normal().string();
  return job;
}

}  // namespace pipewright
