// Rules of `check` about a run as a whole: job, data, plan, outputs.
#include <ATen/Parallel.h>

#include <algorithm>
#include <memory>

#include "base/error.h"
#include "base/files/output_folder.h"
#include "base/files/read_file.h"
#include "base/text.h"
#include "check/rules.h"
#include "formats/job_mistakes.h"
#include "formats/package/package_files.h"
#include "formats/profile/profile.h"
#include "plan/placement/device_map.h"
#include "plan/placement/residence.h"
#include "plan/plan_text.h"
#include "plan/run/run_plan.h"
#include "report/page.h"
#include "runtime/checkpoint/checkpoint_folder.h"
#include "runtime/checkpoint/final_weights.h"
#include "runtime/commands/eval.h"
#include "runtime/commands/infer.h"
#include "runtime/exec/phase.h"
#include "runtime/feed.h"
#include "runtime/session.h"
#include "runtime/transport/thread_transport.h"

namespace pipewright {

// Each pair of ranks has a channel: time and memory grow with their square.
constexpr int kMostThreads = 128;
constexpr size_t kMostCells = 20;  // the most malformed cells of a plan to list

// Checks the device map that takes the place of a conf.
static std::optional<Conf> CheckMapFile(const CheckRequest& request, const Manifest& manifest,
                                        CheckResult& result) {
  std::optional<Conf> conf;
  Passes(result, "conf", [&] {
    const std::string& path = request.device_map;
    const DeviceMap map = ReadDeviceMap(ReadJson(path), path);
    conf = ReadResidence(manifest, map, path, request.ranks).conf;
    result.ranks = CountRanks(*conf);
  });
  return conf;
}

std::optional<Conf> CheckConfFile(const CheckRequest& request, const Manifest& manifest,
                                  CheckResult& result) {
  if (!request.device_map.empty()) return CheckMapFile(request, manifest, result);
  Conf conf;
  std::vector<Error> mistakes;
  const bool read = Passes(result, "conf", [&] {
    const std::string path = ConfOfRun(request.package, request.conf, request.ranks);
    conf = ReadConf(path, static_cast<int>(manifest.modules.size()),
                    request.ranks > 0 ? request.ranks : -1, ModuleEdges(manifest), mistakes);
  });
  for (const Error& mistake : mistakes) Add(result, Severity::kError, "conf", mistake.what());
  if (!read || !mistakes.empty()) return std::nullopt;
  result.ranks = CountRanks(conf);
  return conf;
}

std::optional<Job> CheckJob(const CheckRequest& request, CheckResult& result) {
  const std::vector<JobMistake> mistakes = JobMistakes(request.job, request.set);
  for (const JobMistake& mistake : mistakes) {
    Add(result, Severity::kError, "job", mistake.text);
    if (mistake.line == 0) continue;
    result.findings.back().line = mistake.line;
    result.findings.back().column = mistake.column;
  }
  if (!mistakes.empty()) return std::nullopt;
  std::optional<Job> job;
  Passes(result, "job", [&] { job = ReadJob(request.job, request.set); });
  return job;
}

bool CheckPlan(const CheckRequest& request, const Job& job, CheckResult& result) {
  if (!job.plan.empty()) {
    std::vector<Error> mistakes;
    const bool read =
        Passes(result, "plan", [&] { ReadPlan(ReadFile(job.plan), job.plan, &mistakes); });
    for (size_t i = 0; i < mistakes.size() && i < kMostCells; ++i)
      Add(result, Severity::kError, "plan", mistakes[i].what());
    if (mistakes.size() > kMostCells)
      Add(result, Severity::kError, "plan",
          job.plan + ": " +
              Counted(static_cast<int64_t>(mistakes.size() - kMostCells), "more malformed cell"));
    if (!read || !mistakes.empty()) return false;
  }
  return Passes(result, "plan", [&] {
    const RunPlan run =
        MakeRunPlan(request.package, request.conf, job, request.ranks,
                                    request.eval, request.device_map);
    if (!request.eval && job.validation.every > 0) MakeForwardPlan(job, run);
  });
}

bool CheckData(const CheckRequest& request, const Job& job, const Manifest& manifest,
               CheckResult& result) {
  auto check = [&](const DataJob& data, const std::string& where) {
    return Passes(result, "data", [&] {
      CheckEnoughFiles(job, data);
      const std::unique_ptr<Data> opened = OpenData(data, manifest, where);
      Sampler(job, data.shuffle, *opened);
    });
  };
  const bool training = check(job.data, job.path + ": data");
  if (request.eval || job.validation.every == 0) return training;
  return check(job.validation.data, job.path + ": validation.data") && training;
}

// Removes "reading on every rank: " and "writing on rank 0: ": the ranks are threads here, which a
// reader could not tell apart.
static std::string WithoutRank(const std::string& text) {
  const size_t colon = text.find(": "), on = text.find(" on ");
  if (colon == std::string::npos || on > colon) return text;
  const std::string where = text.substr(on, colon - on);
  return where == " on every rank" || where.starts_with(" on rank ") ? text.substr(colon + 2) : text;
}

// Throws what `open` throws on one of `ranks` threads. Adds the warnings that it returns on rank 0.
// Returns false if they did not run.
static bool RunsOnThreads(
    CheckResult& result,
    const std::function<std::vector<std::string>(Transport& transport)>& open) {
  if (result.ranks > kMostThreads) {
    Skip(result, "start", "ranks are threads here, and " + std::to_string(kMostThreads) +
                              " are the most");
    return false;
  }
  at::set_num_threads(1);
  std::vector<std::string> warnings;
  const bool passes = Passes(result, "start", [&] {
    try {
      RunThreads(result.ranks, [&](Transport& transport) {
        std::vector<std::string> found = open(transport);
        if (transport.rank() == 0) warnings = std::move(found);
      });
    } catch (const AgreedError& e) {
      throw Error(WithoutRank(e.what()));
    }
  });
  for (const std::string& warning : warnings) Add(result, Severity::kWarning, "start", warning);
  return passes;
}

std::optional<Job> CheckStart(const CheckRequest& request, const Job& job, CheckResult& result) {
  Job resolved;
  auto train = [&](Transport& transport) {
    Session session(transport);
    session.job = job;
    SessionOptions options;
    options.device = "cpu";  // these threads are not the ranks of a host
    options.package = request.package;
    options.conf = request.conf;
    options.device_map = request.device_map;
    options.training = true;
    session.Open(options);
    Feed training, validation;
    training.Open(session.job, session.job.data, session.run, job.path + ": data", transport);
    training.minibatches = MinibatchesOf(job);
    std::vector<Microbatches*> sources{&training};
    if (job.validation.every > 0) {
      validation.Open(session.job, session.job.validation.data, session.run,
                      job.path + ": validation.data", transport);
      const int64_t all = validation.sampler->per_epoch(), some = job.validation.steps;
      if (job.validation.every <= job.steps)
        validation.minibatches = some ? std::min(some, all) : all;
      sources.push_back(&validation);
    }
    session.Check(sources);
    training.Finish();
    validation.Finish();
    if (transport.rank() == 0) resolved = session.job;
    return session.run.warnings;
  };
  auto evaluate = [&](Transport& transport) {
    RunOptions options;
    options.device = "cpu";
    options.package = request.package;
    options.job = request.job;
    options.set = request.set;
    options.conf = request.conf;
    options.device_map = request.device_map;
    options.weights = request.weights;
    Job mine;
    std::vector<std::string> warnings = CheckEvaluate(options, transport, mine);
    if (transport.rank() == 0) resolved = std::move(mine);
    return warnings;
  };
  const bool runs = request.eval ? RunsOnThreads(result, evaluate) : RunsOnThreads(result, train);
  if (!runs) return std::nullopt;
  return resolved;
}

std::optional<Manifest> CheckInference(const CheckRequest& request, CheckResult& result) {
  RunOptions options;
  options.device = "cpu";
  options.package = request.package;
  options.conf = request.conf;
  options.device_map = request.device_map;
  options.weights = request.weights;
  options.input = request.input;
  options.output = request.output;
  options.outputs = request.outputs;
  options.microbatches = request.microbatches;
  Manifest run;
  const bool runs = RunsOnThreads(result, [&](Transport& transport) {
    Manifest mine;
    std::vector<std::string> warnings = CheckInfer(options, transport, mine);
    if (transport.rank() == 0) run = std::move(mine);
    return warnings;
  });
  if (!runs) return std::nullopt;
  return run;
}

void CheckOutputs(const CheckRequest& request, const Job& job, const Manifest& manifest,
                  CheckResult& result) {
  for (const std::string& warning : WarningsOfLoss(job, manifest))
    Add(result, Severity::kWarning, "outputs", warning);
  std::vector<std::string> read;
  const bool known = Passes(result, "outputs", [&] {
    read = RunFiles(request.package, manifest, job, {request.weights, request.conf});
  });
  if (!known) return;
  OutputFiles outputs(read);
  Passes(result, "outputs", [&] { outputs.Add(job.path + ": save", job.save, true); });
  Passes(result, "outputs", [&] {
    outputs.Add(job.path + ": metrics", job.metrics, true, /*in_place=*/true);
  });
  if (!job.tensorboard.empty())
    Passes(result, "outputs", [&] {
      try {
        CheckFolder(job.tensorboard);
      } catch (const Error& e) {
        throw Error(job.path + ": tensorboard", e.what());
      }
    });
  if (!job.report.empty())
    Passes(result, "outputs", [&] { CheckPageOutput(job.report, read, false); });
  if (job.checkpoint.folder.empty()) return;
  Passes(result, "outputs", [&] { CheckFolder(job.checkpoint.folder); });
  if (!request.resume)
    Passes(result, "outputs", [&] { CheckHoldsNoCheckpoint(job.checkpoint.folder, job.path); });
}

}  // namespace pipewright
