#include "formats/job.h"

#include <filesystem>

#include "base/error.h"
#include "base/files/read_file.h"
#include "base/json.h"
#include "base/json_comments.h"
#include "base/size.h"
#include "base/text.h"
#include "formats/job_section.h"
#include "plan/schedules/schedule.h"
#include "plan/schedules/table.h"

namespace pipewright {

namespace {

// Reads the columns for the model's inputs and for the target.
void ReadColumns(const Json& in, const std::string& where, DataJob& data) {
  Section{in, where}.Get("target", data.target);
  if (!in.contains("inputs") || !in["inputs"].is_object() || in["inputs"].empty())
    throw Error(where, "\"inputs\" is missing: {\"<model input>\": \"<tensor name>\"}");
  for (const auto& [input, tensor] : in["inputs"].items()) {
    if (!tensor.is_string())
      throw Error(where + ".inputs." + input, "a tensor's name is expected, not " + tensor.dump());
    data.inputs[input] = tensor.get<std::string>();
  }
}

DataJob ReadData(const Json& in, const std::string& where, const std::filesystem::path& folder) {
  DataJob data;
  if (!in.is_object()) throw Error(where, "an object is expected, not " + in.dump());
  CheckKeys(in,
            {"tokens", "dtype", "sequence_length", "tensors", "arrays", "plugin", "options",
             "inputs", "target", "shuffle", "length"},
            where);
  Section section{in, where};
  data.tokens = section.Strings("tokens");
  data.tensors = section.Strings("tensors");
  section.Get("plugin", data.plugin);
  section.Get("shuffle", data.shuffle);
  if (in.contains("arrays")) {
    if (!in["arrays"].is_object() || in["arrays"].empty())
      throw Error(section.Key("arrays"), "{\"<name>\": \"<file>.npy\"} is expected");
    Section arrays{in["arrays"], section.Key("arrays")};
    for (const auto& [name, files] : in["arrays"].items())
      data.arrays[name] = arrays.Strings(name.c_str());
  }
  bool tokens = !data.tokens.empty();
  if (tokens + !data.tensors.empty() + !data.arrays.empty() + !data.plugin.empty() != 1)
    throw Error(where,
                "name one source: \"tokens\" (token files), \"tensors\" (safetensors files), "
                "\"arrays\" (.npy files) or \"plugin\" (a shared library)");
  if (in.contains("dtype"))
    data.token_bytes =
        Choose<int>(in["dtype"], {{"u8", 1}, {"u16", 2}, {"u32", 4}}, section.Key("dtype"));
  for (const char* key : {"dtype", "sequence_length"})
    if (!tokens && in.contains(key)) throw Error(section.Key(key), "only a token file has one");
  section.Get("length", data.length);
  for (const char* key : {"inputs", "target", "length"})
    if (tokens && in.contains(key))
      throw Error(
          section.Key(key),
          "a token file needs none: its samples are all alike, the target is the next token");
  if (in.contains("options")) {
    if (data.plugin.empty()) throw Error(section.Key("options"), "only a plugin has them");
    data.plugin_options = in["options"].dump();
  }
  if (tokens) {
    if (!in.contains("sequence_length"))
      throw Error(where, "\"sequence_length\" is missing: tokens per sample");
    section.AtLeast<int64_t>("sequence_length", 1, data.sequence_length);
    data.target = "target";
  } else {
    ReadColumns(in, where, data);
  }
  auto resolve = [&](std::string& file) { file = (folder / file).lexically_normal().string(); };
  for (std::string& file : data.tokens) resolve(file);
  for (std::string& file : data.tensors) resolve(file);
  for (auto& [name, files] : data.arrays)
    for (std::string& file : files) resolve(file);
  if (!data.plugin.empty()) resolve(data.plugin);
  return data;
}

void ReadLoss(const Json& in, const std::string& where, LossJob& loss) {
  static const std::vector<std::pair<std::string, LossJob::Kind>> kinds = {
      {"cross_entropy", LossJob::kCrossEntropy},
      {"nll", LossJob::kNll},
      {"mse", LossJob::kMse},
      {"l1", LossJob::kL1},
      {"smooth_l1", LossJob::kSmoothL1},
      {"bce_with_logits", LossJob::kBceWithLogits},
      {"kl_div", LossJob::kKlDiv}};
  if (in.is_string()) {
    loss.kind = Choose(in, kinds, where);
    return;
  }
  if (!in.is_object()) throw Error(where, "a name or an object is expected, not " + in.dump());
  CheckKeys(in,
            {"type", "output", "target", "weight", "class_dim", "ignore_index", "label_smoothing",
             "beta", "log_target", "reduction"},
            where);
  loss.kind = in.contains("type") ? Choose(in["type"], kinds, where + ".type") : LossJob::kOutput;
  if (loss.kind == LossJob::kOutput && !in.contains("output"))
    throw Error(where, "\"type\" or \"output\" is missing");
  Section section{in, where};
  auto only = [&](const char* key, bool has, const char* types) {
    if (in.contains(key) && !has) throw Error(section.Key(key), std::string("only ") + types);
  };
  only("class_dim", loss.HasClasses(), "cross_entropy and nll have one");
  only("ignore_index", loss.HasClasses(), "cross_entropy and nll have one");
  only("label_smoothing", loss.kind == LossJob::kCrossEntropy, "cross_entropy has one");
  only("beta", loss.kind == LossJob::kSmoothL1, "smooth_l1 has one");
  only("log_target", loss.kind == LossJob::kKlDiv, "kl_div has one");
  only("reduction", loss.kind == LossJob::kKlDiv,
       "kl_div has one; the others are means over all targets that count");
  if (in.contains("output") && in["output"].is_string())
    loss.output_name = in["output"].get<std::string>();
  else
    section.AtLeast<int>("output", 0, loss.output);
  section.Get("target", loss.target);
  if (!loss.target.empty() && loss.kind == LossJob::kOutput)
    throw Error(section.Key("target"), "this output is the loss itself, which has no target");
  section.Range("weight", -kAnyNumber, kAnyNumber, loss.weight);
  section.Get("ignore_index", loss.ignore_index);
  section.Range("label_smoothing", 0, 1, loss.label_smoothing);
  section.Range("beta", 0, kAnyNumber, loss.beta);
  section.Get("log_target", loss.log_target);
  if (in.contains("reduction"))
    loss.batch_mean = Choose<bool>(in["reduction"], {{"mean", false}, {"batchmean", true}},
                                   section.Key("reduction"));
  if (!in.contains("class_dim")) return;
  int dim = 0;
  section.AtLeast<int>("class_dim", -64, dim, 64);
  if (dim == 0)
    throw Error(section.Key("class_dim"), "dimension 0 is that of the samples",
                "1 as PyTorch has it for images, or -1 for the last");
  loss.class_dim = dim;
}

std::vector<LossJob> ReadLosses(const Json& in, const std::string& where) {
  std::vector<LossJob> losses(in.is_array() ? in.size() : 1);
  if (losses.empty()) throw Error(where, "a loss is expected, not []");
  if (!in.is_array()) ReadLoss(in, where, losses[0]);
  for (size_t k = 0; in.is_array() && k < losses.size(); ++k)
    ReadLoss(in[k], where + "[" + std::to_string(k) + "]", losses[k]);
  return losses;
}

void ReadLossScale(const Json& in, const std::string& where, LossScaleJob& scale) {
  scale.used = true;
  if (in.is_number()) {
    scale.initial = in.get<double>();
    if (!(scale.initial >= 1e-30 && scale.initial <= 1e300))
      throw Error(where, in.dump() + " is out of range: at least 1e-30, at most 1e+300");
    return;
  }
  if (!in.is_object()) throw Error(where, "a number or an object is expected, not " + in.dump());
  CheckKeys(in, {"initial", "growth", "backoff", "interval"}, where);
  scale.initial = kInitialLossScale;
  scale.interval = 2000;
  Section section{in, where};
  section.Range("initial", 1e-30, 1e300, scale.initial);
  section.Range("growth", 1, 1e300, scale.growth);
  section.Range("backoff", 1e-30, 1, scale.backoff);
  section.AtLeast<int64_t>("interval", 1, scale.interval);
}

void ReadValidation(const Json& in, const std::string& where, const std::filesystem::path& folder,
                    ValidationJob& validation) {
  CheckKeys(in, {"data", "every", "steps"}, where);
  if (!in.contains("data") || !in.contains("every"))
    throw Error(where, "\"data\" and \"every\" (steps between two validations) are needed");
  Section section{in, where};
  section.AtLeast<int64_t>("every", 1, validation.every);
  section.AtLeast<int64_t>("steps", 1, validation.steps);
  validation.data = ReadData(in["data"], where + ".data", folder);
}

void ReadCheckpoint(const Json& in, const std::string& where, CheckpointJob& checkpoint) {
  CheckKeys(in, {"to", "every", "keep"}, where);
  if (!in.contains("to"))
    throw Error(where, "\"to\" is missing: the folder that checkpoints go to");
  Section section{in, where};
  section.Get("to", checkpoint.folder);
  if (checkpoint.folder.empty()) throw Error(where + ".to", "names no folder");
  section.AtLeast<int64_t>("every", 1, checkpoint.every);
  section.AtLeast<int64_t>("keep", 0, checkpoint.keep);
}

void ReadRecompute(const Json& in, const std::string& where, RecomputeJob& recompute) {
  if (in.is_boolean()) {
    recompute.all = in;
    return;
  }
  if (!in.is_object())
    throw Error(where, "true, false, or {\"stages\": [...], \"modules\": [...]} is expected, not " +
                           in.dump());
  CheckKeys(in, {"stages", "modules"}, where);
  for (auto [key, list] :
       {std::pair("stages", &recompute.stages), std::pair("modules", &recompute.modules)}) {
    if (!in.contains(key)) continue;
    bool right = in[key].is_array();
    for (size_t i = 0; right && i < in[key].size(); ++i)
      right = in[key][i].is_number_integer() && in[key][i] >= 0 && in[key][i] <= 1 << 30;
    if (!right)
      throw Error(where + "." + key, "a list of numbers from 0 is expected, not " + in[key].dump());
    *list = in[key].get<std::vector<int>>();
  }
}

}  // namespace

bool IsPlanFile(const std::string& schedule) {
  return schedule.find('/') != std::string::npos || schedule.ends_with(".csv");
}

void SetSchedule(Job& job, const std::string& schedule, const std::string& where) {
  if (!IsPlanFile(schedule)) CheckScheduleName(schedule, where);
  job.schedule = schedule;
  job.plan = IsPlanFile(schedule) ? schedule : "";
}

const std::vector<std::pair<std::string, MatMul>>& MatMulNames() {
  static const std::vector<std::pair<std::string, MatMul>> names = {
      {"libtorch", MatMul::kLibTorch}, {"onednn", MatMul::kOneDnn}, {"auto", MatMul::kAuto}};
  return names;
}

const std::vector<std::pair<std::string, BodyChoice>>& BodyNames() {
  static const std::vector<std::pair<std::string, BodyChoice>> names = {
      {"auto", BodyChoice::kAuto},
      {"autograd", BodyChoice::kAutograd},
      {"lists", BodyChoice::kLists}};
  return names;
}

const std::vector<std::string>& JobKeys() {
  static const std::vector<std::string> keys = {"data",
                                                "loss",
                                                "optimizer",
                                                "schedule",
                                                "plan",
                                                "microbatches",
                                                "microbatch_size",
                                                "steps",
                                                "seed",
                                                "threads",
                                                "log_every",
                                                "save",
                                                "metrics",
                                                "tensorboard",
                                                "report",
                                                "nan",
                                                "check_shared",
                                                "checkpoint",
                                                "accumulate",
                                                "loss_scale",
                                                "freeze",
                                                "validation",
                                                "accuracy",
                                                "reduce",
                                                "recompute",
                                                "costs",
                                                "partial",
                                                "minibatch_size",
                                                "memory",
                                                "buffers",
                                                "body",
                                                "matmul",
                                                "device",
                                                "tf32"};
  return keys;
}

static void ReadFilesToWrite(const Section& section, Job& job) {
  section.Get("save", job.save);
  section.Get("metrics", job.metrics);
  section.Get("tensorboard", job.tensorboard);
  section.Get("report", job.report);
}

Job ParseJob(const Json& in, const std::string& file, const std::string& path) {
  CheckKeys(in, JobKeys(), path);
  Job job;
  job.path = file;
  for (const char* key : {"data", "loss", "optimizer", "microbatches"})
    if (!in.contains(key)) throw Error(path, std::string("the key \"") + key + "\" is missing");
  std::filesystem::path folder = std::filesystem::path(file).parent_path();
  job.data = ReadData(in["data"], path + ": data", folder);
  if (in.contains("validation"))
    ReadValidation(in["validation"], path + ": validation", folder, job.validation);
  job.losses = ReadLosses(in["loss"], path + ": loss");
  if (in.contains("checkpoint"))
    ReadCheckpoint(in["checkpoint"], path + ": checkpoint", job.checkpoint);
  Section section{in, path + ":"};
  section.Get("schedule", job.schedule);
  section.Get("plan", job.plan);
  section.Get("costs", job.costs);
  if (in.contains("memory")) {
    const Json& memory = in["memory"];
    if (!memory.is_string() && !memory.is_number_integer())
      throw Error(section.Key("memory"), "a size is expected, \"8GiB\" or bytes");
    job.memory = ParseSize(memory.is_string() ? memory.get<std::string>() : memory.dump(),
                           section.Key("memory"));
    const ScheduleKind* kind = FindSchedule(job.schedule);
    if (job.costs.empty() || !kind || !kind->searched)
      throw Error(section.Key("memory"), "it is a limit for zb-auto, which also needs \"costs\"");
  }
  const std::string plan = job.plan;
  SetSchedule(job, job.schedule, section.Key("schedule"));
  if (!plan.empty()) job.plan = plan;
  // Limits the size of the plan, which has actions for each microbatch, and counts of samples.
  constexpr int kMostMicrobatches = 1000000, kMostThreads = 1024;
  constexpr int64_t kMostSamples = int64_t{1} << 40;
  section.AtLeast<int>("microbatches", 1, job.microbatches, kMostMicrobatches);
  if (in.contains("microbatch_size") == in.contains("minibatch_size"))
    throw Error(path, in.contains("minibatch_size")
                          ? "give either \"microbatch_size\" or \"minibatch_size\", not both"
                          : "the key \"microbatch_size\" is missing");
  section.AtLeast<int64_t>("microbatch_size", 1, job.microbatch_size, kMostSamples);
  section.AtLeast<int64_t>("minibatch_size", job.microbatches, job.minibatch_size, kMostSamples);
  if (job.minibatch_size > 0)
    job.microbatch_size = (job.minibatch_size + job.microbatches - 1) / job.microbatches;
  section.Get("partial", job.partial);
  section.AtLeast<int64_t>("steps", 0, job.steps);
  section.AtLeast<int>("accumulate", 1, job.accumulate, kMostMicrobatches / job.microbatches);
  job.optimizer = ReadOptimizer(in["optimizer"], path + ": optimizer", in.value("steps", 0L));
  if (in.contains("loss_scale"))
    ReadLossScale(in["loss_scale"], path + ": loss_scale", job.loss_scale);
  job.freeze = section.Strings("freeze");
  section.AtLeast<int>("threads", 1, job.threads, kMostThreads);
  section.AtLeast<int64_t>("log_every", 1, job.log_every);
  int64_t seed = 0;
  section.AtLeast<int64_t>("seed", 0, seed);
  job.seed = static_cast<uint64_t>(seed);
  ReadFilesToWrite(section, job);
  section.Get("device", job.device);
  section.Get("tf32", job.tf32);
  section.Get("check_shared", job.check_shared);
  if (in.contains("nan"))
    job.stop_on_nan =
        Choose<bool>(in["nan"], {{"stop", true}, {"ignore", false}}, section.Key("nan"));
  if (in.contains("reduce"))
    job.exact_reduce =
        Choose<bool>(in["reduce"], {{"fast", false}, {"exact", true}}, section.Key("reduce"));
  if (in.contains("buffers") && in["buffers"] == "mean")
    throw Error(section.Key("buffers"), "\"mean\" is not known (did you mean \"merge\"?)",
                "known: first, merge (\"merge\" in the manifest says how, for each buffer)");
  if (in.contains("buffers"))
    job.merge_buffers =
        Choose<bool>(in["buffers"], {{"first", false}, {"merge", true}}, section.Key("buffers"));
  if (in.contains("body"))
    job.body = Choose<BodyChoice>(in["body"], BodyNames(), section.Key("body"));
  if (in.contains("matmul"))
    job.matmul = Choose<MatMul>(in["matmul"], MatMulNames(), section.Key("matmul"));
  if (in.contains("recompute"))
    ReadRecompute(in["recompute"], section.Key("recompute"), job.recompute);
  section.Get("accuracy", job.accuracy);
  if (job.accuracy && !job.losses[0].HasClasses())
    throw Error(section.Key("accuracy"), "only cross_entropy and nll have one");
  for (DataJob* data : {&job.data, &job.validation.data}) {
    if (data != &job.data && job.validation.every == 0) continue;
    const std::string where = path + (data == &job.data ? ": data" : ": validation.data");
    for (const LossJob& loss : job.losses) {
      if (!loss.target.empty() && !data->tokens.empty())
        throw Error(where, "a token file has no column " + Quote(loss.target),
                    "its target is the next token");
      data->targets.push_back(loss.target.empty() ? data->target : loss.target);
      if (loss.kind == LossJob::kOutput || !data->targets.back().empty()) continue;
      throw Error(where, "\"target\" is missing: the loss compares an output with it");
    }
  }

  for (std::string* file : {&job.save, &job.metrics, &job.tensorboard, &job.report, &job.plan,
                            &job.costs, &job.checkpoint.folder, &job.optimizer.state_folder})
    if (!file->empty()) *file = (folder / *file).lexically_normal().string();
  return job;
}

void ChangeJob(Json& job, const std::string& change) {
  const size_t equals = change.find('=');
  const std::string path = change.substr(0, equals), where = "--set " + change;
  if (equals == std::string::npos || equals == 0)
    throw Error(where, "KEY=VALUE is expected, such as optimizer.lr=0.1");
  Json* at = &job;
  std::string walked;
  for (const std::string& key : Split(path, '.')) {
    const std::string here = walked.empty() ? "the job" : Quote(walked);
    if (at->is_array()) {
      const bool number = !key.empty() && key.find_first_not_of("0123456789") == std::string::npos;
      if (!number || key.size() > 9 || std::stoul(key) >= at->size())
        throw Error(where, here + " is a list of " + Counted(at->size(), "entry") +
                               ", and \"" + key + "\" is none of them (they count from 0)");
      at = &(*at)[std::stoul(key)];
    } else if (at->is_object()) {
      at = &(*at)[key];  // JSON null if it is new
      if (at->is_null()) *at = Json::object();
    } else {
      throw Error(where, here + " is " + at->dump() + " and has no keys",
                  "give the whole value: --set '" + walked + "={...}'");
    }
    walked += (walked.empty() ? "" : ".") + key;
  }
  const std::string value = change.substr(equals + 1);
  try {
    *at = ParseJson(value, where);
  } catch (const Error&) {
    *at = value;  // text needs no quotes
  }
}

std::string JobName(const std::string& path, const std::vector<std::string>& changes) {
  return changes.empty() ? path : path + " with --set " + Join(changes, " --set ");
}

Job ReadJob(const std::string& path, const std::vector<std::string>& changes) {
  if (std::error_code ignored; std::filesystem::is_directory(path, ignored))
    throw Error(path, "is a folder, where a job (a JSON file) is expected",
                "the package comes first, then the job");
  std::string text = WithoutComments(ReadFile(path));
  Json in = ParseJson(text, path);
  if (!changes.empty() && !in.is_object()) CheckKeys(in, JobKeys(), path);
  for (const std::string& change : changes) ChangeJob(in, change);
  if (!changes.empty()) text = FormatJson(in);
  Job job = ParseJob(in, path, JobName(path, changes));
  job.text = text;
  return job;
}

}  // namespace pipewright
