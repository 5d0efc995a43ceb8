#include "tune/result.h"

#include <algorithm>
#include <cstdio>

#include "base/median.h"
#include "base/size.h"
#include "base/table.h"

namespace pipewright {

namespace {

std::string Milliseconds(double seconds) {
  char text[32];
  std::snprintf(text, sizeof text, "%.1f ms", 1e3 * seconds);
  return text;
}

std::string ScheduleText(const TuneCandidate& c) {
  std::string text = c.schedule;
  if (c.recompute.size() == c.conf.stage_to_ranks.size())
    text += ", recompute";
  else if (!c.recompute.empty())
    text += ", recompute " + std::to_string(c.recompute.size()) + " stages";
  return text + (c.body.empty() ? "" : ", " + c.body);
}

}  // namespace

std::string TuneTable(const std::vector<TuneRow>& rows) {
  std::vector<std::vector<std::string>> table = {{"", "ranks", "threads", "microbatches",
                                                  "schedule", "stages", "predicted", "measured",
                                                  "from - to", "bubble", "peak"}};
  for (const TuneRow& row : rows) {
    const TuneCandidate& c = row.candidate;
    const auto [low, high] = std::minmax_element(row.steps.begin(), row.steps.end());
    char bubble[16];
    std::snprintf(bubble, sizeof bubble, "%.0f %%", 100 * c.bubble);
    table.push_back({row.as_given ? "as given" : "",
                     std::to_string(c.ranks) + (row.variant && row.in_process ? " in process" : ""),
                     std::to_string(c.threads),
                     std::to_string(c.microbatches) + " of " + std::to_string(c.microbatch),
                     ScheduleText(c), std::to_string(c.conf.stage_to_ranks.size()),
                     Milliseconds(c.step),
                     !row.failure.empty() ? "failed"
                     : row.steps.empty()  ? "-"
                                          : Milliseconds(Median(row.steps)),
                     row.steps.empty() ? "-" : Milliseconds(*low) + " - " + Milliseconds(*high),
                     bubble, SizeText(static_cast<int64_t>(LargestPeak(c)))});
  }
  return FormatTable(table);
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
                 {"measured", row.steps},
                 {"measured_process_bytes", row.process_bytes},
                 {"bubble", c.bubble},
                 {"peak_bytes", c.peak_bytes},
                 {"module_to_stage", c.conf.module_to_stage},
                 {"stage_to_ranks", c.conf.stage_to_ranks}};
    if (!c.body.empty()) json["body"] = c.body;
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
  report["notes"] = outcome.notes;
  return report;
}

}  // namespace pipewright
