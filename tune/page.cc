#include "tune/page.h"

#include <algorithm>
#include <cstdio>

#include "base/size.h"
#include "base/text.h"
#include "plan/tune/help.h"
#include "report/svg.h"
#include "report/timeline_picture.h"

namespace pipewright {

namespace {

constexpr char kHead[] = R"(<!DOCTYPE html>
<html lang="en">
<meta charset="utf-8">
<meta name="viewport" content="width=device-width">
<meta http-equiv="Content-Security-Policy" content="default-src 'none'; style-src 'unsafe-inline'">
<style>
:root { color-scheme: light dark }
body { margin: 0 auto; max-width: 1500px; padding: 0 24px 60px; font: 14px/1.45 sans-serif }
h1 { font-size: 22px } h2 { font-size: 17px; margin-top: 36px }
.box { overflow: auto } table { border-collapse: collapse }
th, td { text-align: left; padding: 3px 12px 3px 8px; border-bottom: 1px solid #8886 }
td.over { color: #d9442f } pre { overflow: auto; padding: 10px; border: 1px solid #8886 }
</style>
)";

constexpr char kColumns[] =
    R"(<p>The fastest comes first. <i>microbatches</i>: their number, and the
samples in each; <i>3 x 4 of 2</i>: 3 minibatches, each of 4 microbatches of 2 samples.
<i>stages</i>: if there are fewer than ranks, several ranks hold replicas of one.
<i>predicted</i>: by the simulator, from the measured modules. <i>expected</i>: predicted, times how
much longer the candidates before it took than predicted. <i>measured</i>: the median of the runs,
which took <i>from - to</i>. <i>bubble</i>: the share of time that the rank which waits most waits, as
predicted.
<i>peak</i>: the memory of the tensors of the fullest rank, as predicted. <i>binds</i>: what limits
the candidate.</p>
)";

using Cells = std::vector<std::vector<std::string>>;

// The first row is the head.
std::string TableHtml(const Cells& rows) {
  std::string html = "<div class=\"box\"><table>\n";
  for (size_t r = 0; r < rows.size(); ++r) {
    html += "<tr>";
    const std::string cell = r == 0 ? "th" : "td";
    for (const std::string& text : rows[r])
      html += "<" + cell + ">" + EscapeXml(text) + "</" + cell + ">";
    html += "</tr>\n";
  }
  return html + "</table></div>\n";
}

std::string Heading(const std::string& text) { return "<h2>" + EscapeXml(text) + "</h2>\n"; }

std::string Bytes(double bytes) { return SizeText(static_cast<int64_t>(bytes)); }

std::string MemoryTable(const TuneProblem& problem, const TuneCandidate& winner) {
  Cells rows = {{"rank", "memory of its tensors", "limit"}};
  for (size_t r = 0; r < winner.peak_bytes.size(); ++r) {
    const double limit = RankLimit(problem, static_cast<int>(r));
    rows.push_back(
        {std::to_string(r), Bytes(winner.peak_bytes[r]), limit < kNoLimit ? Bytes(limit) : "none"});
  }
  return TableHtml(rows);
}

std::string HelpTable(const std::vector<TuneHelp>& helps, const TuneCandidate& winner) {
  Cells rows = {{"change", "predicted step", "gain"}};
  for (const TuneHelp& help : helps) {
    char gain[40];
    std::snprintf(gain, sizeof gain, "%.1f %%", 100 * (1 - help.step / winner.step));
    rows.push_back({help.change, StepText(help.step), gain});
  }
  return TableHtml(rows);
}

std::string Timelines(const TuneProblem& problem, const std::vector<TuneRow>& rows) {
  const TuneCandidate& winner = rows.front().candidate;
  std::vector<Timeline> timelines = {{"winner", TimelineOf(problem, winner)}};
  if (timelines[0].actions.empty()) return "<p>The step has too many actions to draw.</p>\n";
  std::string title = winner.minibatches > 1 ? "A minibatch of the winner" : "The winner";
  for (size_t i = 1; i < rows.size(); ++i) {
    const TuneCandidate& other = rows[i].candidate;
    if (other.ranks != winner.ranks || other.minibatches != winner.minibatches ||
        (other.schedule == winner.schedule && other.microbatches == winner.microbatches &&
         other.conf == winner.conf))
      continue;
    timelines.push_back({"candidate " + std::to_string(i + 1), TimelineOf(problem, other)});
    if (timelines.back().actions.empty()) {
      timelines.pop_back();
      continue;
    }
    title += " and candidate " + std::to_string(i + 1) + " (" + other.schedule + ", " +
             Counted(other.microbatches, "microbatch") + ")";
    break;
  }
  return "<p>" + EscapeXml(title) + ", as predicted, in microseconds.</p>\n<div class=\"box\">" +
         TimelineSvg(timelines, "time in microseconds") + "</div>\n";
}

}  // namespace

std::string TunePage(const TuneRequest& request, const TuneProblem& problem,
                     const TuneOutcome& outcome, const std::string& start_line) {
  const TuneCandidate& winner = outcome.rows.front().candidate;
  const std::string title =
      EscapeXml("Tuning of " + (request.model.empty() ? request.package : request.model));
  std::string html = kHead + ("<title>" + title) + "</title>\n<h1>" + title + "</h1>\n<pre>" +
                     EscapeXml(start_line) + "</pre>\n<p>" + EscapeXml(TuneVerdict(outcome)) +
                     "</p>\n";
  if (!request.machines.empty())
    html += "<p>Every figure is an estimate for " + EscapeXml(request.machines) + ".</p>\n";
  html += Heading("Candidates") + TableHtml(TuneCells(outcome.rows, !request.machines.empty()));
  html += kColumns;
  html += "<p>" + EscapeXml(TuneCounts(outcome.found)) + "</p>\n<ul>\n";
  for (const std::string& note : outcome.notes) html += "<li>" + EscapeXml(note) + "</li>\n";
  html += "</ul>\n" + Heading("Memory of the winner") + MemoryTable(problem, winner);
  html += Heading("What would help") + HelpTable(outcome.help, winner);
  html += Heading("Timeline") + Timelines(problem, outcome.rows);
  return html + "</html>\n";
}

}  // namespace pipewright
