#include "runtime/session.h"

#include <filesystem>

#include "plan/error.h"
#include "plan/lower.h"
#include "plan/plan_text.h"
#include "plan/schedule.h"
#include "plan/text.h"
#include "plan/validate.h"
#include "runtime/weights.h"

namespace pipewright {

namespace {

Conf ReadConfOf(const SessionOptions& options, const Manifest& manifest, int ranks) {
  std::string path = options.conf.empty() ? options.package + "/conf/mp_conf.json" : options.conf;
  Conf conf = ReadConf(path);
  std::vector<std::pair<int, int>> edges;
  for (const ValueInfo& value : manifest.values)
    if (value.producer >= 0)
      for (int consumer : value.consumers) edges.emplace_back(value.producer, consumer);
  int named = 0;
  for (const std::vector<int>& replicas : conf.stage_to_ranks)
    for (int rank : replicas) named = std::max(named, rank + 1);
  if (named != ranks)
    throw Error(path,
                "is for " + std::to_string(named) + (named == 1 ? " rank" : " ranks") +
                    ", the run has " + std::to_string(ranks),
                "start " + std::to_string(named) + ", or make a conf for " + std::to_string(ranks) +
                    ":\n    pipewright conf " + options.package + " --ranks " +
                    std::to_string(ranks) + " -o conf.json\n  and run with --conf conf.json");
  CheckConf(conf, static_cast<int>(manifest.modules.size()), ranks, edges, path);
  for (size_t stage = 0; stage < conf.stage_to_ranks.size(); ++stage)
    if (conf.stage_to_ranks[stage].size() > 1)
      throw Error(path,
                  "stage " + std::to_string(stage) + " has replicas, which this version cannot run",
                  "give each stage one rank");
  return conf;
}

Plan MakePlan(const Session& session, const SessionOptions& options) {
  if (!session.job.plan.empty() && options.training) {
    Plan plan = ReadPlan(ReadFile(session.job.plan), session.job.plan);
    Validate(plan, session.graph);
    return plan;
  }
  ScheduleOptions schedule;
  schedule.forward_only = !options.training;
  return Lower(MakeSchedule(options.training ? session.job.schedule : "gpipe", session.graph.ranks,
                            session.graph.stages, session.job.microbatches, session.graph.ranks_of,
                            schedule),
               session.graph);
}

void CheckLoss(const Session& session) {
  int outputs = static_cast<int>(session.manifest.outputs.size());
  int output = session.job.loss.output;
  std::vector<std::string> names;
  for (int id : session.manifest.outputs) names.push_back(session.manifest.values[id].name);
  if (output >= outputs)
    throw Error(session.job.path + ": loss.output",
                "the model has no output " + std::to_string(output),
                "its outputs: " + Join(names, ", "));
  const ValueInfo& value = session.manifest.values[session.manifest.outputs[output]];
  if (value.kind != "tensor" || value.producer < 0)
    throw Error(session.job.path + ": loss.output",
                "output " + std::to_string(output) + " is not a tensor that the model computes");
}

// Everything that must be the same on all ranks, as one text.
uint64_t Fingerprint(const Session& session, const SessionOptions& options) {
  std::string text =
      WriteManifest(session.manifest) + WritePlan(session.plan) + WriteConf(session.conf);
  for (const ModuleInfo& module : session.manifest.modules)
    text += ReadFile(options.package + "/" + module.code);
  if (std::filesystem::exists(session.job.path)) text += ReadFile(session.job.path);
  return Hash(text);
}

template <typename F>
void Phase(Transport& transport, const std::string& name, F&& work) {
  std::string error;
  try {
    work();
  } catch (const std::exception& e) {
    error = e.what();
    if (error.empty()) error = "failed";
  }
  Vote(transport, name, error);
}

}  // namespace

void ReadSession(Session& session, const SessionOptions& options, int ranks) {
  session.manifest = ReadManifest(options.package);
  session.conf = ReadConfOf(options, session.manifest, ranks);
  session.graph = MakeStageGraph(session.manifest, session.conf);
  if (options.has_loss) CheckLoss(session);
  session.plan = MakePlan(session, options);
  session.groups = SharedGroups(session.manifest, session.conf);
}

void OpenSession(Session& session, const SessionOptions& options, Transport& transport,
                 const std::function<std::vector<TensorSpec>()>& specs,
                 std::function<at::Tensor(int, int)> input,
                 std::function<void(int, int, const at::Tensor&)> output) {
  StageSettings settings;
  uint64_t fingerprint = 0;
  Phase(transport, "reading", [&] {
    ReadSession(session, options, transport.size());
    settings.specs = InferShapes(options.package, session.manifest, specs());
    fingerprint = Fingerprint(session, options);
  });
  Agree(transport, fingerprint, "package, conf and job");
  Phase(transport, "loading", [&] {
    settings.manifest = &session.manifest;
    settings.package = options.package;
    settings.conf = &session.conf;
    settings.graph = &session.graph;
    settings.rank = transport.rank();
    settings.training = options.training;
    settings.microbatches = session.job.microbatches;
    settings.seed = session.job.seed;
    settings.has_loss = options.has_loss;
    settings.loss = session.job.loss;
    settings.optimizer = session.job.optimizer;
    settings.stop_on_nan = session.job.stop_on_nan;
    settings.keep_gradients = options.keep_gradients;
    settings.input = std::move(input);
    settings.output = std::move(output);
    session.stages = std::make_unique<TorchStages>(std::move(settings));
    if (!options.weights.empty()) LoadWeights(options.weights, session.manifest, *session.stages);
    session.executor = std::make_unique<Executor>(session.plan, session.graph, session.groups,
                                                  *session.stages, transport);
  });
}

void RunStep(Session& session, int64_t step, Transport& transport) {
  session.stages->SetStep(step);
  try {
    session.executor->RunStep();
  } catch (const std::exception& e) {
    transport.Abort("step " + std::to_string(step + 1) + ", " + e.what(), kFailure);
  }
}

std::string Describe(const Session& session, int rank) {
  std::vector<std::string> parts;
  for (int stage = 0; stage < session.graph.stages; ++stage) {
    if (session.conf.stage_to_ranks[stage][0] != rank) continue;
    std::vector<std::string> modules;
    const std::vector<int>& map = session.conf.module_to_stage;
    for (size_t m = 0; m < map.size(); ++m) {
      if (map[m] != stage) continue;
      size_t last = m;
      while (last + 1 < map.size() && map[last + 1] == stage) ++last;
      modules.push_back(std::to_string(m) + (last > m ? "-" + std::to_string(last) : ""));
      m = last;
    }
    parts.push_back("stage " + std::to_string(stage) + ": modules " + Join(modules, ", "));
  }
  return Join(parts, "; ");
}

}  // namespace pipewright
