#include "tune/job_costs.h"

#include <algorithm>
#include <set>

#include "base/error.h"
#include "base/files/read_file.h"
#include "base/text.h"
#include "formats/conf.h"
#include "plan/schedules/table.h"
#include "tune/allowed.h"
#include "tune/changed_job.h"
#include "tune/kept.h"
#include "tune/profiles.h"
#include "tune/runs.h"
#include "tune/temporary_file.h"

namespace pipewright {

namespace {

constexpr int kSteps = 5;

// Returns the figures of a run on one rank; none if the budget is over.
std::optional<Json> FiguresOfJob(const TuneRequest& request, const Job& job,
                                 const TuneBudget& budget, int threads, int modules) {
  const TemporaryFile job_file = {request.output + "/own_job.json"},
                      conf_file = {request.output + "/own_conf.json"};
  JobChanges changes = {kDefaultSchedule, job.microbatches, SamplesOf(job), {}, threads};
  WriteFile(job_file.path, ChangedJob(job.path, job_file.path, changes));
  WriteFile(conf_file.path, WriteConf(GroupModules(modules, 1)));
  return BenchRun({request.package, job_file.path, conf_file.path, 1, RunsInProcess(request, 1),
                   kSteps, request.start},
                  budget);
}

// Returns the name for the measurements of jobs with these losses, optimizer and sizes.
std::string NameOf(const Job& job, int threads) {
  Json text = ParseJson(job.text, job.path);
  for (const char* key :
       {"data", "validation", "steps", "save", "metrics", "checkpoint", "report", "tensorboard",
        "schedule", "plan", "costs", "memory", "recompute", "seed", "log_every"})
    text.erase(key);
  return "job-" + HexHash(text.dump()) + "-" + std::to_string(threads) + "-threads";
}

}  // namespace

void SetJobCosts(const Json& figures, int threads, int64_t size, TuneProblem& problem) {
  constexpr double kMicroseconds = 1e-6;
  const Json& costs = figures.at("stages").at(0).at("costs");
  double forward = kMicroseconds * costs.at("F").get<double>(),
         backward = kMicroseconds * costs.at("B").get<double>(), trained = 0;
  for (const TuneProfile& each : problem.profiles) {
    if (each.profile.threads != threads || each.profile.microbatch != size) continue;
    for (const ProfileNode& node : each.profile.nodes) {
      forward -= node.forward.median;
      backward -= node.backward.median;
      trained += node.trained;
    }
    break;
  }
  if (trained <= 0) return;
  const double step = kMicroseconds * costs.at("step").get<double>();
  for (TuneProfile& each : problem.profiles) {
    if (each.profile.threads != threads) continue;
    const double share = static_cast<double>(each.profile.microbatch) / static_cast<double>(size);
    each.loss_forward = std::max(0.0, forward) * share;
    each.loss_backward = std::max(0.0, backward) * share;
    each.step_per_byte = step / trained;
  }
}

void MeasureJobCosts(const TuneRequest& request, const Job& job, const TuneBudget& budget,
                     TuneProblem& problem, std::vector<std::string>& notes) {
  const int modules = static_cast<int>(problem.manifest.modules.size());
  const KeptMeasurements kept = KeptFor(request, problem.manifest);
  std::set<int> threads;
  for (const TuneProfile& profile : problem.profiles) threads.insert(profile.profile.threads);
  bool missing = false;
  for (int count : threads) {
    const std::string name = NameOf(job, count);
    std::optional<Json> figures = ReadKept(kept, name, kSteps);
    try {
      if (!figures && !budget.IsOver()) {
        Say(request, "loss and optimizer: 1 rank of " + Counted(count, "thread"));
        figures = FiguresOfJob(request, job, budget, count, modules);
        if (figures) WriteKept(kept, name, kSteps, *figures);
      }
      missing = missing || !figures;
      if (figures) SetJobCosts(*figures, count, job.microbatch_size, problem);
    } catch (const std::exception& error) {
      notes.push_back(
          "predictions are without loss and optimizer, since the job does not run on "
          "one rank: " +
          std::string(error.what()));
    }
  }
  if (missing)
    notes.push_back(budget.Ended() +
                    " ended the measurements: predictions are without loss and optimizer");
}

}  // namespace pipewright
