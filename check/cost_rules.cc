// Rules of `check` about predicted time and memory.
#include <algorithm>
#include <cmath>
#include <cstdio>

#include "base/error.h"
#include "base/size.h"
#include "base/text.h"
#include "check/rules.h"
#include "plan/simulate/measure.h"
#include "plan/simulate/simulate.h"
#include "report/view.h"

namespace pipewright {

namespace {

std::string Bytes(double bytes) { return SizeText(static_cast<int64_t>(std::llround(bytes))); }

// Warn about a rank whose compute time exceeds the mean by this factor.
constexpr double kUnbalanced = 1.25;

void CheckBalance(const CheckRequest& request, const Figures& figures, CheckResult& result) {
  double most = 0, sum = 0;
  size_t rank = 0;
  for (size_t r = 0; r < figures.ranks.size(); ++r) {
    sum += figures.ranks[r].busy;
    if (figures.ranks[r].busy > most) most = figures.ranks[r].busy, rank = r;
  }
  const double mean = sum / static_cast<double>(figures.ranks.size());
  if (!(most > kUnbalanced * mean)) return;
  char ratio[32];
  std::snprintf(ratio, sizeof ratio, "%.2f", most / mean);
  Add(result, Severity::kWarning, "balance",
      request.package + ": rank " + std::to_string(rank) + " computes " + ratio +
          " times as long as a rank does on average\n  find a better cut: pipewright partition " +
          request.package + ", or pipewright tune");
}

void CheckMemory(const CheckRequest& request, const Figures& figures, CheckResult& result) {
  for (size_t r = 0; r < figures.ranks.size(); ++r) {
    const RankFigures& rank = figures.ranks[r];
    const std::string held = "rank " + std::to_string(r) + " holds up to " +
                             Bytes(rank.peak_bytes) + " (" + Bytes(rank.held_bytes) +
                             " of weights and optimizer state, the rest in a step)";
    if (request.memory > 0 && rank.peak_bytes > request.memory)
      Add(result, Severity::kError, "memory",
          request.package + ": " + held + ", and the limit is " + Bytes(request.memory) +
              "\n  use more ranks, smaller microbatches or \"recompute\" in the job");
    else
      Add(result, Severity::kNote, "memory", request.package + ": " + held);
  }
}

}  // namespace

void CheckCosts(const CheckRequest& request, const Job& job, CheckResult& result) {
  const PackageView view = ViewPackage(request.package, request.conf);
  if (!view.profile) {
    std::string why = "there is no profile: pipewright profile " + request.package;
    for (const std::string& missing : view.missing)
      if (missing.find("profile") != std::string::npos) why = missing;
    if (request.memory > 0)
      Add(result, Severity::kWarning, "memory", "--memory: nothing is compared with it: " + why);
    for (const char* rule : {"balance", "memory", "time"}) Skip(result, rule, why);
    return;
  }
  Passes(result, "time", [&] {
    const Prediction prediction = PredictRun(view, job);
    const ActionTrace trace = Simulate(prediction.plan, prediction.costs);
    const Figures figures = Measure(prediction.plan, prediction.costs, trace);
    CheckBalance(request, figures, result);
    CheckMemory(request, figures, result);
    double idle = 0;
    for (const RankFigures& rank : figures.ranks) idle += rank.bubble_rate(figures.makespan);
    char text[80];
    std::snprintf(text, sizeof text, "a step takes %.4g ms, and ranks are idle for %.0f %% of it",
                  figures.makespan / 1000, 100 * idle / static_cast<double>(figures.ranks.size()));
    Add(result, Severity::kNote, "time", request.package + ": " + text);
    for (const std::string& note : prediction.notes)
      Add(result, Severity::kNote, "time", request.package + ": " + note);
  });
}

}  // namespace pipewright
