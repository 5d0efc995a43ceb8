#include "tune/tune.h"

#include <algorithm>
#include <cmath>
#include <optional>

#include "base/error.h"
#include "base/files/atomic_file.h"
#include "base/files/output_folder.h"
#include "base/size.h"
#include "base/text.h"
#include "formats/job.h"
#include "formats/package/package_files.h"
#include "plan/partition/io/stage_costs.h"
#include "tune/allowed.h"
#include "tune/profiles.h"
#include "tune/rounds.h"

namespace pipewright {

namespace {

constexpr char kRecord[] = "report.json";

TuneProblem ProblemOf(const TuneRequest& request, const Job& job) {
  TuneProblem problem;
  problem.manifest = ReadManifest(request.package);
  problem.samples = SamplesOf(job);
  problem.microbatch_size = job.microbatch_size, problem.microbatches = job.microbatches;
  problem.optimizer_state = OptimizerState(job.optimizer);
  if (!request.memory.empty())
    problem.memory = static_cast<double>(ParseSize(request.memory, "--memory"));
  if (!job.freeze.empty()) Freeze(problem.manifest, job.freeze, job.path + ": freeze");
  return problem;
}

// Returns the job as it is: modules grouped in order, its own schedule and microbatches.
std::optional<TuneRow> AsGiven(const TuneRequest& request, const Job& job,
                               const TuneProblem& problem, std::vector<std::string>& notes) {
  if (!job.plan.empty()) {
    notes.push_back("the unmodified job is not among the candidates: it has a plan, " + job.plan);
    return std::nullopt;
  }
  const int modules = static_cast<int>(problem.manifest.modules.size());
  const int ranks = std::min(request.ranks, modules);
  for (const TuneProfile& profile : problem.profiles) {
    if (profile.ranks != ranks || profile.profile.microbatch != job.microbatch_size) continue;
    try {
      TuneRow row;
      row.as_given = true;
      row.candidate = Predict(problem, profile, GroupModules(modules, ranks), job.schedule,
                              job.microbatches, job.recompute.all);
      return row;
    } catch (const Error& error) {
      notes.push_back(std::string("the unmodified job is not among the candidates: ") +
                      error.what());
    }
  }
  return std::nullopt;
}

bool Same(const TuneCandidate& a, const TuneCandidate& b) {
  return a.ranks == b.ranks && a.microbatches == b.microbatches && a.schedule == b.schedule &&
         a.recompute == b.recompute && a.conf == b.conf;
}

// Returns the rows to measure: the job as given, if it is one, then the best of the search.
std::vector<TuneRow> RowsOf(const TuneRequest& request, const Job& job, const TuneProblem& problem,
                            TuneOutcome& outcome) {
  std::vector<TuneRow> rows;
  for (const TuneCandidate& candidate : outcome.found.best) {
    rows.emplace_back();
    rows.back().candidate = candidate;
  }
  const std::optional<TuneRow> given = AsGiven(request, job, problem, outcome.notes);
  if (!given) return rows;
  const auto same = std::find_if(rows.begin(), rows.end(), [&](const TuneRow& row) {
    return Same(row.candidate, given->candidate);
  });
  if (same != rows.end())
    same->as_given = true;
  else if (LargestPeak(given->candidate) <= problem.memory)
    rows.push_back(*given);
  else
    outcome.notes.push_back("the unmodified job would take " +
                            SizeText(static_cast<int64_t>(LargestPeak(given->candidate))) +
                            " on a rank, more than --memory");
  // It is measured first, so that the result is not slower, however short the time.
  std::stable_partition(rows.begin(), rows.end(), [](const TuneRow& row) { return row.as_given; });
  return rows;
}

[[noreturn]] void RefuseMemory(const TuneRequest& request, const TuneResult& found) {
  if (found.large.empty())
    throw Error(request.package,
                "no schedule is defined for these ranks and microbatches" +
                    std::string(request.exact ? ", and has the results of the job" : ""));
  const TuneCandidate& least = found.large.front();
  const auto bytes = static_cast<int64_t>(std::ceil(LargestPeak(least)));
  throw Error("--memory " + request.memory,
              "nothing fits: the smallest of " + Counted(found.over, "candidate") + " takes " +
                  SizeText(bytes) + " on a rank (" + Counted(least.ranks, "rank") + ", " +
                  least.schedule + (least.recompute ? " with recomputation, " : ", ") +
                  Counted(least.microbatches, "microbatch") + ")",
              "give --memory " + std::to_string(bytes) + " or more, or more ranks");
}

}  // namespace

TuneOutcome Tune(const TuneRequest& request, const std::vector<WrittenBuffer>& written) {
  const Job job = ReadJob(request.job);
  TuneProblem problem = ProblemOf(request, job);
  std::vector<std::string> read = PackageFiles(request.package, problem.manifest);
  read.push_back(request.job);
  OutputTexts files = {{"conf.json", ""}, {"job.json", ""}};
  CheckOutputFolder(request.output, kRecord, files, read, request.force);
  CreateFolders(request.output);

  TuneOutcome outcome;
  LimitCandidates(request, written, job, problem, outcome.notes);
  const std::set<int64_t> sizes =
      MicrobatchSizes(request, problem.manifest, written, job, outcome.notes);
  MeasureProfiles(request, job, sizes, problem, outcome.notes);
  outcome.found = SearchTune(problem, static_cast<size_t>(request.candidates));
  outcome.rows = RowsOf(request, job, problem, outcome);
  if (outcome.rows.empty()) RefuseMemory(request, outcome.found);
  if (!request.no_measure) MeasureRows(request, job, outcome.rows, outcome.notes);
  SortRows(outcome.rows);
  if (!outcome.rows.front().failure.empty())
    throw Error(request.package, "no candidate ran: " + outcome.rows.front().failure);

  const TuneCandidate& winner = outcome.rows.front().candidate;
  files["conf.json"] = WriteConf(winner.conf);
  files["job.json"] = JobText(request, job, winner);
  outcome.report = TuneReport(outcome);
  for (const std::string& note :
       WriteOutputFolder(request.output, kRecord, files, outcome.report, read))
    outcome.notes.push_back(note);
  return outcome;
}

std::string StartLine(const TuneRequest& request, const TuneOutcome& outcome) {
  return "pipewright-run -n " + std::to_string(outcome.rows.front().candidate.ranks) + " train " +
         request.package + " " + request.output + "/job.json --conf " + request.output +
         "/conf.json";
}

}  // namespace pipewright
