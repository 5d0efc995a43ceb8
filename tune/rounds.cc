#include "tune/rounds.h"

#include <algorithm>
#include <chrono>
#include <cmath>

#include "base/error.h"
#include "base/files/read_file.h"
#include "base/median.h"
#include "base/text.h"
#include "formats/conf.h"
#include "tune/allowed.h"
#include "tune/changed_job.h"
#include "tune/profiles.h"
#include "tune/runs.h"
#include "tune/temporary_file.h"

namespace pipewright {

std::string JobText(const TuneRequest& request, const Job& job, const TuneCandidate& candidate) {
  return ChangedJob(
      job.path, request.output + "/job.json",
      {candidate.schedule, candidate.microbatches, SamplesOf(job), candidate.recompute});
}

void MeasureRows(const TuneRequest& request, const Job& job, std::vector<TuneRow>& rows,
                 std::vector<std::string>& notes) {
  const auto start = std::chrono::steady_clock::now();
  const TemporaryFile job_file = {request.output + "/candidate_job.json"},
                      conf_file = {request.output + "/candidate_conf.json"};
  for (int round = 0; round < request.rounds; ++round)
    for (size_t i = 0; i < rows.size(); ++i) {
      TuneRow& row = rows[i];
      if (!row.failure.empty()) continue;
      const std::chrono::duration<double> passed = std::chrono::steady_clock::now() - start;
      const bool measured = std::any_of(rows.begin(), rows.end(),
                                        [](const TuneRow& each) { return !each.steps.empty(); });
      if (measured && passed.count() > request.time_limit) {
        const auto open = std::count_if(rows.begin(), rows.end(), [](const TuneRow& each) {
          return each.steps.empty() && each.failure.empty();
        });
        notes.push_back("--time-limit ended the measurements in round " +
                        std::to_string(round + 1) + " of " + std::to_string(request.rounds) +
                        (open ? ": " + std::to_string(open) + " of " +
                                    Counted(rows.size(), "candidate") + " were not measured"
                              : ""));
        round = request.rounds;
        break;
      }
      Say(request, "round " + std::to_string(round + 1) + " of " + std::to_string(request.rounds) +
                       ": candidate " + std::to_string(i + 1) + " of " +
                       std::to_string(rows.size()));
      WriteFile(job_file.path, JobText(request, job, row.candidate));
      WriteFile(conf_file.path, WriteConf(row.candidate.conf));
      TuneRun run = {request.package, job_file.path, conf_file.path, row.candidate.ranks,
                     request.in_process};
      constexpr double kSeconds = 1;  // length of a measurement, to average out noise
      run.steps = std::clamp(static_cast<int>(std::ceil(kSeconds / row.candidate.step)), 3, 50);
      try {
        row.steps.push_back(MeasureStep(run));
      } catch (const Error& error) {
        row.failure = error.what();
        notes.push_back("candidate " + std::to_string(i + 1) + " is dropped: " + row.failure);
      }
    }
}

void SortRows(std::vector<TuneRow>& rows) {
  auto key = [](const TuneRow& row) -> std::pair<int, double> {
    if (!row.failure.empty()) return {2, 0};
    if (row.steps.empty()) return {1, row.candidate.step};
    return {0, Median(row.steps)};
  };
  std::stable_sort(rows.begin(), rows.end(),
                   [&](const TuneRow& a, const TuneRow& b) { return key(a) < key(b); });
}

}  // namespace pipewright
