#include "tune/job_costs.h"

#include <algorithm>
#include <functional>
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

namespace pipewright {

namespace {

constexpr int kSteps = 5;

// Returns the figures of a run on one rank with microbatches of this size; none if the budget is
// over.
std::optional<Json> FiguresOfJob(const TuneRequest& request, const Job& job,
                                 const TuneBudget& budget, int threads, int64_t size, int modules) {
  const std::string job_file = request.scratch + "/own_job.json",
                    conf_file = request.scratch + "/own_conf.json";
  const int64_t samples = SamplesOf(job);
  const auto microbatches = size == job.microbatch_size
                                ? job.microbatches
                                : static_cast<int>((samples + size - 1) / size);
  JobChanges changes = {kDefaultSchedule, microbatches, samples};
  changes.threads = threads;
  WriteFile(job_file, ChangedJob(ParseJson(job.text, job.path), job.path, job_file, changes));
  WriteFile(conf_file, WriteConf(GroupModules(modules, 1)));
  return BenchRun(
      {request.package, job_file, conf_file, 1, RunsInProcess(request, 1), kSteps, request.start},
      budget);
}

// Returns the name for the measurements of jobs with these losses, optimizer and sizes.
std::string NameOf(const TuneRequest& request, const Job& job, int threads, int64_t size) {
  Json text = ParseJson(job.text, job.path);
  for (const char* key :
       {"data", "validation", "steps", "save", "metrics", "checkpoint", "report", "tensorboard",
        "schedule", "plan", "costs", "memory", "recompute", "seed", "log_every"})
    text.erase(key);
  std::string name = KeptPrefix(request, job) + "job-" + HexHash(text.dump()) + "-" +
                     std::to_string(threads) + "-threads";
  if (size != job.microbatch_size) name += "-" + std::to_string(size) + "-samples";
  return name;
}

int64_t LargestSize(const TuneProblem& problem, int threads) {
  int64_t largest = 0;
  for (const TuneProfile& each : problem.profiles)
    if (each.profile.threads == threads) largest = std::max(largest, each.profile.microbatch);
  return largest;
}

// Holds what a run takes beyond its modules, in seconds and bytes as in TuneProfile.
struct Rest {
  int64_t size = 1;  // samples of a microbatch
  double forward = 0, backward = 0, step_per_byte = 0;
  double kept = 0, peak = 0;
};

std::optional<Rest> RestOf(const Json& figures, int threads, int64_t size,
                           const TuneProblem& problem) {
  constexpr double kMicroseconds = 1e-6;
  const auto of_size = [&](const TuneProfile& each) {
    return each.profile.threads == threads && each.profile.microbatch == size;
  };
  const auto profile = std::find_if(problem.profiles.begin(), problem.profiles.end(), of_size);
  if (profile == problem.profiles.end()) return std::nullopt;
  const Json& costs = figures.at("stages").at(0).at("costs");
  Rest rest = {size, kMicroseconds * costs.at("F").get<double>(),
               kMicroseconds * costs.at("B").get<double>()};
  double trained = 0;
  for (const ProfileNode& node : profile->profile.nodes) {
    rest.forward -= node.forward.median;
    rest.backward -= node.backward.median;
    trained += node.trained;
  }
  if (trained <= 0) return std::nullopt;
  const Json& loss = figures.at("stages").at(0).at("loss");
  rest.kept = loss.at("kept"), rest.peak = loss.at("peak");
  rest.forward = std::max(0.0, rest.forward), rest.backward = std::max(0.0, rest.backward);
  rest.step_per_byte = kMicroseconds * costs.at("step").get<double>() / trained;
  return rest;
}

// Returns the value for `size` samples on the line through two rests, or through zero and one.
double OnLine(const std::vector<Rest>& rests, double Rest::* value, int64_t size) {
  const Rest &first = rests.front(), &last = rests.back();
  if (rests.size() == 1)
    return first.*value * static_cast<double>(size) / static_cast<double>(first.size);
  const double share =
      static_cast<double>(size - first.size) / static_cast<double>(last.size - first.size);
  return std::max(0.0, first.*value + share * (last.*value - first.*value));
}

}  // namespace

void SetJobCosts(const std::map<int64_t, Json>& figures, int threads, TuneProblem& problem) {
  std::vector<Rest> rests;
  for (const auto& [size, of_size] : figures)
    if (const std::optional<Rest> rest = RestOf(of_size, threads, size, problem))
      rests.push_back(*rest);
  if (rests.empty()) return;
  for (TuneProfile& each : problem.profiles) {
    if (each.profile.threads != threads) continue;
    const int64_t size = each.profile.microbatch;
    each.loss_forward = OnLine(rests, &Rest::forward, size);
    each.loss_backward = OnLine(rests, &Rest::backward, size);
    each.loss_kept = OnLine(rests, &Rest::kept, size);
    each.loss_peak = OnLine(rests, &Rest::peak, size);
    // After a single microbatch, the gradients are where its backward left them.
    each.step_per_byte = (size >= rests.back().size ? rests.back() : rests.front()).step_per_byte;
  }
}

void MeasureJobCosts(const TuneRequest& request, const Job& job, const TuneBudget& budget,
                     TuneProblem& problem, std::vector<std::string>& notes) {
  const int modules = static_cast<int>(problem.manifest.modules.size());
  const KeptMeasurements kept = KeptFor(request, problem.manifest);
  std::set<int, std::greater<>> threads;  // those that use most cores first
  for (const TuneProfile& profile : problem.profiles) threads.insert(profile.profile.threads);
  std::map<int, std::map<int64_t, Json>> figures;  // by threads and size
  std::set<int> failed;
  for (const bool largest : {false, true})
    for (int count : threads) {
      const int64_t size = largest ? LargestSize(problem, count) : job.microbatch_size;
      std::map<int64_t, Json>& by_size = figures[count];
      if (by_size.count(size) || failed.count(count)) continue;
      try {
        const std::string name = NameOf(request, job, count, size);
        std::optional<Json> of_size = ReadKept(kept, name, kSteps);
        // Earlier versions did not measure the loss's memory.
        if (of_size && !of_size->at("stages").at(0).contains("loss")) of_size.reset();
        if (!of_size && !budget.IsOver()) {
          Say(request, "loss and optimizer: 1 rank of " + Counted(count, "thread") +
                           ", microbatches of " + Counted(size, "sample"));
          of_size = FiguresOfJob(request, job, budget, count, size, modules);
          if (of_size) WriteKept(kept, name, kSteps, *of_size);
        }
        if (!of_size) continue;
        by_size[size] = *of_size;
        SetJobCosts(by_size, count, problem);
      } catch (const std::exception& error) {
        failed.insert(count);
        notes.push_back((by_size.empty()
                             ? "predictions are without loss and optimizer, since the job does not "
                               "run on one rank: "
                             : "predictions assume that the loss takes as much time and memory for "
                               "each sample as in the job's microbatches, since larger ones do not "
                               "run on one rank: ") +
                        std::string(error.what()));
      }
    }
  const bool missing = std::any_of(threads.begin(), threads.end(), [&](int count) {
    return figures[count].empty() && !failed.count(count);
  });
  if (missing)
    notes.push_back(budget.Ended() +
                    " ended the measurements: predictions are without loss and optimizer");
}

}  // namespace pipewright
