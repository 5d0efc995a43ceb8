#include "tune/rounds.h"

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <numeric>
#include <tuple>

#include "base/error.h"
#include "base/files/read_file.h"
#include "base/median.h"
#include "base/process/host_resources.h"
#include "base/size.h"
#include "base/text.h"
#include "formats/conf.h"
#include "plan/plan_text.h"
#include "plan/simulate/lower_bound.h"
#include "plan/tune/job_memory.h"
#include "plan/tune/predict.h"
#include "tune/job/allowed.h"
#include "tune/job/changed_job.h"
#include "tune/measure/kept.h"
#include "tune/measure/mixed_rows.h"
#include "tune/measure/outputs.h"
#include "tune/measure/profiles.h"
#include "tune/measure/runs.h"
#include "tune/result.h"

namespace pipewright {

std::string JobText(const Job& job, const TuneRow& row, const std::string& path) {
  const TuneCandidate& candidate = row.candidate;
  const Json text = ParseJson(job.text, job.path);
  JobChanges changes = {candidate.schedule, candidate.microbatches,
                        SamplesOf(job) / candidate.minibatches};
  changes.accumulate = job.accumulate * candidate.minibatches;
  if (row.own_recompute)
    changes.recompute = text.at("recompute");
  else if (!candidate.recompute.empty())
    changes.recompute = {{"stages", candidate.recompute}};
  if (!candidate.plan.ranks.empty()) changes.schedule = kTunePlan;
  if (candidate.threads != job.threads) changes.threads = candidate.threads;
  changes.body = candidate.body;
  return ChangedJob(text, job.path, path, changes);
}

std::vector<TuneRow> VariantsOf(const TuneRow& best, const TuneRequest& request, const Job& job,
                                const TuneProblem& problem) {
  std::vector<TuneRow> variants;
  TuneRow other;
  other.candidate = best.candidate;
  other.in_process = best.in_process, other.own_recompute = best.own_recompute;
  other.variant = true;
  if (best.candidate.ranks > 1 && !request.in_process && !request.processes &&
      !request.start.given()) {
    variants.push_back(other);
    variants.back().in_process = true;
  }
  bool lists = false;
  for (const TuneProfile& profile : problem.profiles)
    for (const ProfileNode& node : profile.profile.nodes) lists |= node.body == "lists";
  if (lists && !job.body && best.candidate.body.empty()) {
    variants.push_back(other);
    variants.back().candidate.body = "autograd";
  }
  return variants;
}

namespace {

constexpr double kSeconds = 1;  // length of a measurement, to average out noise

// The outputs of the first candidate that runs, with which those of the others are compared.
struct FirstOutputs {
  const std::string file;
  const int plain;    // microbatches of the plain run
  const bool narrow;  // as for WhyOutputsDiffer
  std::vector<std::string>& notes;
  int microbatches = 0;  // 0: nothing ran
};

// Keeps the first outputs, and throws Error if others differ from them.
void CompareOutputs(const TuneRequest& request, int microbatches, const std::string& output,
                    FirstOutputs& first) {
  if (first.microbatches == 0) {
    std::filesystem::rename(output, first.file);
    first.microbatches = microbatches;
    if (microbatches > first.plain)
      first.notes.push_back("outputs were compared with those of " +
                            Counted(microbatches, "microbatch") +
                            ", and it is not known whether they are the same with " +
                            std::to_string(first.plain) + ", which did not run");
  } else if (const std::string why = WhyOutputsDiffer(output, first.file, first.narrow);
             !why.empty()) {
    throw Error(request.input, "with " + Counted(microbatches, "microbatch") + ", output " + why +
                                   " from that with " + std::to_string(first.microbatches) +
                                   ": forward mixes rows, or draws random numbers");
  }
}

std::optional<MeasuredStep> PassOfRow(const TuneRequest& request, const TuneBudget& budget,
                                      const TuneRow& row, const TuneRun& run, FirstOutputs& first) {
  const std::string output = request.scratch + "/candidate_output.safetensors";
  const int microbatches = row.candidate.microbatches;
  const std::optional<MeasuredStep> pass = MeasurePass(
      {run, request.input, microbatches, row.candidate.threads, request.scratch, output}, budget);
  if (pass && row.steps.empty()) CompareOutputs(request, microbatches, output, first);
  std::filesystem::remove(output);  // it may be large
  return pass;
}

// The files of a candidate's run.
struct RowFiles {
  const std::string conf, job, plan, metrics;
};

RowFiles FilesIn(const std::string& folder) {
  return {folder + "/candidate_conf.json", folder + "/candidate_job.json",
          folder + "/candidate_" + kTunePlan, folder + "/candidate_metrics.jsonl"};
}

// Writes the files of a candidate, and returns its run.
TuneRun RunOfRow(const TuneRequest& request, const Job& job, const TuneRow& row,
                 const RowFiles& files) {
  WriteFile(files.conf, WriteConf(row.candidate.conf));
  TuneRun run = {request.package, "", files.conf, row.candidate.ranks, row.in_process};
  run.start = request.start;
  run.steps = static_cast<int>(
      std::clamp(std::ceil(kSeconds / (row.candidate.step * job.accumulate)), 3.0, 50.0));
  if (request.infers()) return run;
  Json text = ParseJson(JobText(job, row, files.job), files.job);
  KeepOnlySteps(text);
  if (!row.candidate.plan.ranks.empty()) {
    WriteFile(files.plan, WritePlan(row.candidate.plan));
    text["schedule"] = std::string("candidate_") + kTunePlan;
  }
  WriteFile(files.job, FormatJson(text));
  run.job = files.job;
  return run;
}

// Runs a candidate once. Returns false if the budget is over.
bool MeasureRow(const TuneRequest& request, const Job& job, const TuneBudget& budget, TuneRow& row,
                FirstOutputs& first) {
  const RowFiles files = FilesIn(request.scratch);
  const TuneRun run = RunOfRow(request, job, row, files);
  const std::optional<MeasuredStep> step = request.infers()
                                               ? PassOfRow(request, budget, row, run, first)
                                               : MeasureStep(run, files.metrics, budget);
  if (!step) return false;
  row.steps.push_back(step->seconds / job.accumulate);
  row.others = std::max(row.others, step->others);
  row.process_bytes = std::max(row.process_bytes, step->process_bytes);
  return true;
}

// Measures the most that the tensors of a rank of a candidate take, and sets `failure` if that is
// more than the rank's limit. Returns false if the budget is over.
bool MeasureMemory(const TuneRequest& request, const Job& job, const TuneProblem& problem,
                   const TuneBudget& budget, TuneRow& row) {
  const RowFiles files = FilesIn(request.scratch);
  TuneRun run = RunOfRow(request, job, row, files);
  run.in_process = RunsInProcess(request, run.ranks);
  run.steps = 1;
  const std::vector<double> checks = CheckBytes(job, problem, row.candidate);
  std::string over;
  // A rank takes a message more if a busy machine delays the receiver: then it is measured again.
  for (int attempt = 0; attempt < 2 && (attempt == 0 || !over.empty()); ++attempt) {
    const std::optional<Json> figures = BenchRun(run, budget);
    if (!figures) {  // the first attempt counts, if there was one
      row.failure = over;
      return attempt > 0;
    }
    over.clear();
    row.tensor_bytes = row.needed_bytes = 0;
    row.unforeseen = 0;
    row.unseen.clear();
    for (int rank = 0; rank < run.ranks; ++rank) {
      const auto at = static_cast<size_t>(rank);
      auto bytes = figures->at("ranks").at(at).at("peak_bytes").get<int64_t>();
      // It runs a single minibatch.
      const int64_t sums = job.accumulate * row.candidate.minibatches > 1
                               ? GradientBytes(job, problem, row.candidate.conf, rank)
                               : 0;
      const auto check = static_cast<int64_t>(checks[at]);
      row.unseen.push_back(sums + check);
      bytes += sums;
      row.tensor_bytes = std::max(row.tensor_bytes, bytes);
      const double predicted = row.candidate.peak_bytes[at];
      bytes += check;
      row.needed_bytes = std::max(row.needed_bytes, bytes);
      if (static_cast<double>(bytes) <= RankLimit(problem, rank)) continue;
      row.unforeseen = std::max(row.unforeseen, static_cast<double>(bytes) - predicted);
      over = "rank " + std::to_string(rank) + " takes " + SizeText(bytes) +
             (check > 0 ? " (including " + SizeText(check) + " to check operation lists)" : "") +
             ", more than " + request.options + "memory " + request.memory + ", and " +
             SizeText(static_cast<int64_t>(predicted)) + " was predicted";
    }
  }
  row.failure = over;
  return true;
}

void NoteCutOff(const TuneRequest& request, const TuneBudget& budget, int round,
                const std::vector<TuneRow>& rows, std::vector<std::string>& notes) {
  if (round >= request.rounds) {
    notes.push_back(budget.Ended() + " left no time for round " + std::to_string(round + 1) +
                    " of " + std::to_string(2 * request.rounds) +
                    ", so that the fastest candidates were compared in fewer rounds");
    return;
  }
  const auto open = std::count_if(rows.begin(), rows.end(), [](const TuneRow& each) {
    return each.steps.empty() && each.failure.empty();
  });
  notes.push_back(budget.Ended() + " ended the measurements in round " + std::to_string(round + 1) +
                  " of " + std::to_string(request.rounds) +
                  (open ? ": " + std::to_string(open) + " of " + Counted(rows.size(), "candidate") +
                              " were not measured"
                        : ""));
}

bool Runs(const TuneRow& row) { return row.failure.empty() && !row.slower; }

// Returns the shortest measured step of those that still run; kNoLimit if none is measured.
double BestStep(const std::vector<TuneRow>& rows) {
  double best = kNoLimit;
  for (const TuneRow& row : rows)
    if (Runs(row) && !row.steps.empty()) best = std::min(best, Median(row.steps));
  return best;
}

}  // namespace

double ExpectedStep(const TuneCandidate& candidate, const std::vector<TuneRow>& rows) {
  std::vector<double> alike, all;  // measured ÷ predicted
  for (const TuneRow& row : rows) {
    if (row.steps.empty()) continue;
    all.push_back(Median(row.steps) / row.candidate.step);
    if (row.candidate.ranks == candidate.ranks) alike.push_back(all.back());
  }
  return candidate.step * (!alike.empty() ? Median(alike) : !all.empty() ? Median(all) : 1);
}

bool IsClearlySlower(const TuneRow& row, const std::vector<TuneRow>& rows) {
  if (row.steps.empty()) return false;
  double differ = 1.25;
  for (const TuneRow& each : rows) {
    if (each.steps.empty()) continue;
    const auto [low, high] = std::minmax_element(each.steps.begin(), each.steps.end());
    differ = std::max(differ, *high / *low);
  }
  return Median(row.steps) > differ * BestStep(rows);
}

bool MeasuresMemory(const TuneRequest& request) {
  return !request.memory.empty() && !request.infers() && !request.no_measure &&
         request.machines.empty() && !(request.in_process && request.ranks > 1);
}

bool SeveralAreFastest(const std::vector<TuneRow>& rows) {
  const double best = BestStep(rows);
  return std::count_if(rows.begin(), rows.end(), [&](const TuneRow& row) {
           return Runs(row) && !row.steps.empty() && Median(row.steps) <= 1.05 * best;
         }) > 1;
}

void MeasureRows(const TuneRequest& request, const Job& job, const TuneProblem& problem,
                 const TuneBudget& budget, std::vector<TuneRow>& rows,
                 std::vector<std::string>& notes) {
  const TuneBudget clock;
  FirstOutputs first = {request.scratch + "/first_output.safetensors", job.microbatches,
                        ComputesIn16Bits(request.package, problem.manifest), notes};
  int runs = 0, last = request.rounds;
  for (int round = 0; round < last; ++round) {
    const double best = BestStep(rows);
    if (round > 0 && best == kNoLimit) return;  // every candidate has failed
    if (round == 1) {
      const auto fastest = std::find_if(rows.begin(), rows.end(), [&](const TuneRow& row) {
        return row.failure.empty() && Median(row.steps) <= best;
      });
      for (TuneRow& variant : VariantsOf(*fastest, request, job, problem)) rows.push_back(variant);
    }
    std::vector<size_t> measured;  // rows, in this round
    for (size_t i = 0; i < rows.size(); ++i) {
      TuneRow& row = rows[i];
      if (IsClearlySlower(row, rows) && !(row.as_given && Median(row.steps) < 2 * best))
        row.slower = true;
      if (!row.failure.empty() || row.slower) continue;
      std::string left;
      if (runs > 0)
        left =
            ", about " +
            DurationText(std::min(
                budget.Left(),
                clock.Passed() / runs *
                    static_cast<double>(rows.size() * static_cast<size_t>(last - round) - i))) +
            (round + 1 < request.rounds ? " left, or more if several are equally fast" : " left");
      Say(request, "round " + std::to_string(round + 1) + " of " + std::to_string(last) +
                       ": candidate " + std::to_string(i + 1) + " of " +
                       std::to_string(rows.size()) + left);
      if (row.steps.empty()) row.expected = ExpectedStep(row.candidate, rows);
      try {
        const std::vector<double>& peaks = row.candidate.peak_bytes;
        const double bytes = std::accumulate(peaks.begin(), peaks.end(), 0.0);
        if (const std::string why =
                row.as_given || row.variant ? "" : WhyTooLarge(request, bytes, MemoryHere());
            !why.empty())
          throw Error(request.package,
                      why + "; limit each rank with " + request.options + "memory");
        ++runs;
        if (!budget.IsOver() && MeasureRow(request, job, budget, row, first)) {
          measured.push_back(i);
          continue;
        }
      } catch (const Error& error) {
        row.failure = error.what();
        notes.push_back(RowText(row, request.infers()) + " is dropped: " + row.failure);
        continue;
      }
      // The speed of the machine may change between rounds, so that only whole ones are compared.
      for (const size_t each : measured)
        if (round > 0) rows[each].steps.pop_back();
      NoteCutOff(request, budget, round, rows, notes);
      return;
    }
    if (round > 0 && round + 1 == request.rounds && SeveralAreFastest(rows)) last *= 2;
    if (round != request.rounds) continue;
    for (const size_t each : measured)  // variants have no first round
      if (!rows[each].variant) rows[each].steps.erase(rows[each].steps.begin());
  }
}

bool DropOverLimit(const TuneRequest& request, const Job& job, const TuneProblem& problem,
                   const TuneBudget& budget, std::vector<TuneRow>& rows,
                   std::vector<std::string>& notes) {
  if (request.in_process && request.ranks > 1) {
    notes.push_back("the memory of ranks that are threads is predicted, and not measured");
    return true;
  }
  for (;;) {
    SortRows(rows);
    TuneRow& row = rows.front();
    if (!row.failure.empty()) return false;
    Say(request, "memory of the fastest candidate");
    try {
      if (budget.IsOver() || !MeasureMemory(request, job, problem, budget, row)) {
        double more = 0;  // bytes that others took beyond their predictions, at most
        for (const TuneRow& each : rows) more = std::max(more, each.unforeseen);
        TuneCandidate foreseen = row.candidate;
        for (double& bytes : foreseen.peak_bytes) bytes += more;
        if (Fits(problem, foreseen)) {
          notes.push_back(budget.Ended() +
                          " ended tune before the memory of the fastest candidate was measured: it "
                          "is predicted");
          return true;
        }
        row.failure = "it is expected to take more than " + request.options + "memory " +
                      request.memory + (more > 0 ? ", as others did" : "");
      }
    } catch (const Error& error) {
      row.failure = error.what();
    }
    if (row.failure.empty()) return true;
    notes.push_back("the fastest candidate is dropped: " + row.failure);
    Say(request, notes.back());
  }
}

void SortRows(std::vector<TuneRow>& rows) {
  auto key = [](const TuneRow& row) -> std::tuple<int, bool, double> {
    if (!row.failure.empty()) return {2, false, 0};
    if (!row.steps.empty()) return {0, row.slower, Median(row.steps)};
    return {1, !row.candidate.body.empty(), row.candidate.step};  // predicted with times of lists
  };
  std::stable_sort(rows.begin(), rows.end(),
                   [&](const TuneRow& a, const TuneRow& b) { return key(a) < key(b); });
}

}  // namespace pipewright
