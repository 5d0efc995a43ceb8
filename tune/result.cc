#include "tune/result.h"

#include <algorithm>
#include <cmath>
#include <cstdio>

#include "base/median.h"
#include "base/size.h"
#include "base/text.h"

namespace pipewright {

std::string StepText(double seconds) {
  char text[32];
  // Steps of less than a millisecond differ in later digits.
  std::snprintf(text, sizeof text, "%.*f ms",
                seconds < 1e-3   ? 4
                : seconds < 1e-2 ? 2
                                 : 1,
                1e3 * seconds);
  return text;
}

namespace {

std::string ScheduleText(const TuneCandidate& c) {
  std::string text = c.schedule;
  if (c.recompute.size() == c.conf.stage_to_ranks.size())
    text += ", recompute";
  else if (!c.recompute.empty())
    text += ", recompute " + std::to_string(c.recompute.size()) + " stages";
  if (const size_t stages = c.conf.offloaded_stages.size(); stages > 0)
    text += ", " + Counted(stages, "stage") + " on disk";
  return text + (c.body.empty() ? "" : ", " + c.body);
}

// Returns text such as "4", or "3 x 4" if each of 3 minibatches has 4.
std::string MicrobatchesText(const TuneCandidate& c) {
  return (c.minibatches > 1 ? std::to_string(c.minibatches) + " x " : "") +
         std::to_string(c.microbatches);
}

std::string MicrobatchesWords(const TuneCandidate& c) {
  return MicrobatchesText(c) +
         (c.minibatches * c.microbatches == 1 ? " microbatch" : " microbatches");
}

}  // namespace

std::string RowText(const TuneRow& row, bool infers) {
  const TuneCandidate& c = row.candidate;
  if (row.as_given) return infers ? "the plain run" : "the run as given";
  return ScheduleText(c) + " with " + Counted(c.conf.stage_to_ranks.size(), "stage") + " on " +
         Counted(c.ranks, "rank") + " with " + MicrobatchesWords(c) + ", " +
         Counted(c.threads, "thread") + " a rank" +
         (row.variant && row.in_process && c.ranks > 1 ? ", in process" : "");
}

std::vector<std::vector<std::string>> TuneCells(const std::vector<TuneRow>& rows, bool estimated) {
  std::vector<std::vector<std::string>> table = {
      {"", "ranks", "threads", "microbatches", "schedule", "stages",
       estimated ? "estimated" : "predicted", "expected", "measured", "from - to", "bubble", "peak",
       "binds"}};
  for (size_t i = 0; i < rows.size(); ++i) {
    const TuneRow& row = rows[i];
    const TuneCandidate& c = row.candidate;
    const auto [low, high] = std::minmax_element(row.steps.begin(), row.steps.end());
    char bubble[16];
    std::snprintf(bubble, sizeof bubble, "%.0f %%", 100 * c.bubble);
    table.push_back({std::to_string(i + 1) + (row.as_given ? " as given" : ""),
                     std::to_string(c.ranks) +
                         (row.variant && row.in_process && c.ranks > 1 ? " in process" : ""),
                     std::to_string(c.threads),
                     MicrobatchesText(c) + " of " + std::to_string(c.microbatch), ScheduleText(c),
                     std::to_string(c.conf.stage_to_ranks.size()), StepText(c.step),
                     row.expected > 0 ? StepText(row.expected) : "-",
                     !row.failure.empty() ? "failed"
                     : row.steps.empty()  ? "-"
                                          : StepText(Median(row.steps)),
                     row.steps.empty() ? "-" : StepText(*low) + " - " + StepText(*high), bubble,
                     SizeText(static_cast<int64_t>(LargestPeak(c))), row.binds});
  }
  return table;
}

std::string TuneVerdict(const TuneOutcome& outcome) {
  const TuneRow& winner = outcome.rows.front();
  const auto given = std::find_if(outcome.rows.begin(), outcome.rows.end(),
                                  [](const TuneRow& row) { return row.as_given; });
  const bool measured = !winner.steps.empty();
  const TuneCandidate& c = winner.candidate;
  const double step = measured ? Median(winner.steps) : c.step;
  const std::string time = StepText(step) + (measured            ? ""
                                             : outcome.estimated ? " (estimated)"
                                                                 : " (predicted)");
  const bool once = winner.steps.size() == 1;
  const std::string given_name = outcome.infers ? "the plain run" : "the run as given";
  if (winner.as_given)
    return "the fastest is " + given_name + ": " + time + (once ? ", measured once" : "");
  const std::string text = "the fastest is " + ScheduleText(c) + " on " + Counted(c.ranks, "rank") +
                           " with " + MicrobatchesWords(c) + ": " + time;
  if (given == outcome.rows.end() || !given->failure.empty() || (measured && given->steps.empty()))
    return text;
  const double before = measured ? Median(given->steps) : given->candidate.step;
  const std::string gain =
      ", " + std::to_string(std::lround(100 * (1 - step / before))) + " % less than " + given_name;
  if (!measured) return text + gain;
  const bool clear = *std::max_element(winner.steps.begin(), winner.steps.end()) <
                     *std::min_element(given->steps.begin(), given->steps.end());
  return text + gain +
         (!clear                     ? ", but their measurements overlap"
          : given->steps.size() == 1 ? ", which was measured once"
          : once                     ? ", and was measured once"
                                     : "");
}

std::string TuneCounts(const TuneResult& found) {
  std::string text = "candidates: " + std::to_string(found.simulated) + " simulated, " +
                     std::to_string(found.pruned) + " pruned by their bound, " +
                     std::to_string(found.over) + " over the memory limit, " +
                     std::to_string(found.unfit) + " not defined or not allowed";
  if (found.searched + found.too_long > 0)
    text += "; orders searched for " + std::to_string(found.searched) +
            ", too long to search for " + std::to_string(found.too_long);
  return text;
}

Json TuneReport(const TuneOutcome& outcome) {
  Json report = {{"candidates", Json::array()}};
  for (const TuneRow& row : outcome.rows) {
    const TuneCandidate& c = row.candidate;
    Json json = {{"ranks", c.ranks},
                 {"threads", c.threads},
                 {"in_process", row.in_process},
                 {"microbatches", c.microbatches},
                 {"microbatch", c.microbatch},
                 {"schedule", c.schedule},
                 {"recompute", c.recompute},
                 {"as_given", row.as_given},
                 {"predicted", c.step},
                 {"expected", row.expected},
                 {"measured", row.steps},
                 {"measured_process_bytes", row.process_bytes},
                 {"bubble", c.bubble},
                 {"binds", row.binds},
                 {"estimated", outcome.estimated},
                 {"peak_bytes", c.peak_bytes},
                 {"module_to_stage", c.conf.module_to_stage},
                 {"stage_to_ranks", c.conf.stage_to_ranks}};
    if (!outcome.limits.empty())
      json["limit_bytes"] =
          std::vector<double>(outcome.limits.begin(), outcome.limits.begin() + c.ranks);
    if (row.tensor_bytes > 0) json["measured_peak_bytes"] = row.tensor_bytes;
    if (!c.body.empty()) json["body"] = c.body;
    if (!c.conf.offloaded_stages.empty()) json["offloaded_stages"] = c.conf.offloaded_stages;
    if (c.minibatches > 1) json["minibatches"] = c.minibatches;
    if (row.variant) json["variant"] = true;
    if (!row.failure.empty()) json["failure"] = row.failure;
    report["candidates"].push_back(json);
  }
  report["simulated"] = outcome.found.simulated;
  report["pruned"] = outcome.found.pruned;
  report["over_memory"] = outcome.found.over;
  report["undefined"] = outcome.found.unfit;
  report["orders_searched"] = outcome.found.searched;
  report["orders_too_long_to_search"] = outcome.found.too_long;
  report["would_help"] = Json::array();
  for (const TuneHelp& help : outcome.help)
    report["would_help"].push_back(
        {{"change", help.change}, {"predicted", help.step}, {"estimated", outcome.estimated}});
  report["notes"] = outcome.notes;
  return report;
}

}  // namespace pipewright
