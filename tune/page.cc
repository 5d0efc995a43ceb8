#include "tune/page.h"

#include <algorithm>
#include <cctype>
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
summary { cursor: pointer; padding: 4px 0 }
pre { overflow: auto; padding: 10px; border: 1px solid #8886 }
</style>
)";

constexpr char kColumns[] =
    R"(<p>The fastest, the winner, comes first. <i>microbatches</i>: their number, and the
samples in each; <i>3 x 4 of 2</i>: 3 minibatches, each of 4 microbatches of 2 samples.
<i>stages</i>: if there are fewer than ranks, several ranks hold replicas of one.
<i>predicted</i>: by the simulator, from the measured modules. <i>expected</i>: predicted, times how
much longer the candidates before it took than predicted. <i>measured</i>: the median of the runs,
which took <i>from - to</i>. <i>bubble</i>: the share of time that the rank which waits most waits, as
predicted.
<i>peak</i>: the memory of the tensors of the fullest rank, as predicted. <i>binds</i>: what limits
the candidate.</p>
)";

// Only the notes are a list.
constexpr char kEndOfNotes[] = "</ul>\n";

std::string Items(const std::vector<std::string>& notes) {
  std::string html;
  for (const std::string& note : notes) html += "<li>" + EscapeXml(note) + "</li>\n";
  return html;
}

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

std::string MemoryTable(const TuneProblem& problem, const std::vector<TuneRow>& rows) {
  size_t ranks = 0;
  Cells table = {{"rank", "limit"}};
  for (size_t i = 0; i < rows.size(); ++i) {
    table[0].push_back("candidate " + std::to_string(i + 1));
    ranks = std::max(ranks, rows[i].candidate.peak_bytes.size());
  }
  for (size_t rank = 0; rank < ranks; ++rank) {
    const double limit = RankLimit(problem, static_cast<int>(rank));
    table.push_back({std::to_string(rank), limit < kNoLimit ? Bytes(limit) : "none"});
    for (const TuneRow& row : rows) {
      const std::vector<double>& peaks = row.candidate.peak_bytes;
      table.back().push_back(rank < peaks.size() ? Bytes(peaks[rank]) : "-");
    }
  }
  return TableHtml(table);
}

// Says where figures come from.
std::string Word(const TuneOutcome& outcome) {
  return outcome.estimated ? "estimated" : "predicted";
}

std::string HelpTable(const TuneOutcome& outcome) {
  const TuneCandidate& winner = outcome.rows.front().candidate;
  Cells rows = {{"change", Word(outcome) + " step", "gain"}};
  for (const TuneHelp& help : outcome.help) {
    char gain[40];
    std::snprintf(gain, sizeof gain, "%.1f %%", 100 * (1 - help.step / winner.step));
    rows.push_back({help.change, StepText(help.step), gain});
  }
  return TableHtml(rows);
}

// Returns the numbers of rows whose timelines can be compared with the winner's: the job as given
// first.
std::vector<size_t> ComparedRows(const std::vector<TuneRow>& rows) {
  constexpr size_t kMost = 3;
  const TuneCandidate& winner = rows.front().candidate;
  std::vector<size_t> numbers;
  for (size_t i = 1; i < rows.size(); ++i) {
    const TuneCandidate& other = rows[i].candidate;
    if (other.minibatches != winner.minibatches || other.schedule != winner.schedule ||
        other.microbatches != winner.microbatches || other.conf != winner.conf)
      numbers.push_back(i);
  }
  std::stable_partition(numbers.begin(), numbers.end(), [&](size_t i) { return rows[i].as_given; });
  if (numbers.size() > kMost) numbers.resize(kMost);
  return numbers;
}

std::string Timelines(const TuneProblem& problem, const TuneOutcome& outcome) {
  const std::vector<TuneRow>& rows = outcome.rows;
  const TuneCandidate& winner = rows.front().candidate;
  const Timeline first = {"winner", TimelineOf(problem, winner)};
  if (first.actions.empty()) return "<p>The step has too many actions to draw.</p>\n";
  const auto part = [](const TuneCandidate& of) {
    return of.minibatches > 1 ? "one of " + std::to_string(of.minibatches) + " minibatches of "
                              : "";
  };
  std::string title = part(winner) + "the winner";
  title[0] = static_cast<char>(std::toupper(title[0]));
  auto picture = [](const std::vector<Timeline>& timelines) {
    return "<div class=\"box\">" + TimelineSvg(timelines, "time in microseconds") + "</div>\n";
  };
  std::string html;
  for (const size_t i : ComparedRows(rows)) {
    const TuneCandidate& other = rows[i].candidate;
    const std::string name = "candidate " + std::to_string(i + 1);
    const Timeline second = {name, TimelineOf(problem, other)};
    if (second.actions.empty()) continue;
    html +=
        std::string("<details") + (html.empty() ? " open" : "") + "><summary>" +
        EscapeXml(title + " and " + part(other) + name + (rows[i].as_given ? ", as given" : "") +
                  " (" + other.schedule + " on " + Counted(other.ranks, "rank") + ", " +
                  Counted(other.microbatches, "microbatch") + ")") +
        "</summary>\n" + picture({first, second}) + "</details>\n";
  }
  if (html.empty()) html = "<p>" + EscapeXml(title) + ".</p>\n" + picture({first});
  return "<p>As " + Word(outcome) + ", in microseconds.</p>\n" + html;
}

}  // namespace

std::string WithNotes(std::string page, const std::vector<std::string>& notes) {
  return page.insert(page.find(kEndOfNotes), Items(notes));
}

std::string TunePage(const TuneRequest& request, const TuneProblem& problem,
                     const TuneOutcome& outcome, const std::string& start_line) {
  const std::string title =
      EscapeXml("Tuning of " + (request.model.empty() ? request.package : request.model));
  std::string html = kHead + ("<title>" + title) + "</title>\n<h1>" + title + "</h1>\n<pre>" +
                     EscapeXml(start_line) + "</pre>\n<p>" + EscapeXml(TuneVerdict(outcome)) +
                     "</p>\n";
  if (!request.machines.empty())
    html += "<p>Every figure is an estimate for " + EscapeXml(request.machines) + ".</p>\n";
  html += Heading("Candidates") + TableHtml(TuneCells(outcome.rows, outcome.estimated));
  html += kColumns;
  html += "<p>" + EscapeXml(TuneCounts(outcome.found)) + "</p>\n<ul>\n" + Items(outcome.notes) +
          kEndOfNotes + Heading("Memory") + "<p>Memory of the tensors of each rank, as " +
          Word(outcome) + ", and its limit.</p>\n" + MemoryTable(problem, outcome.rows);
  html += Heading("What would help") + HelpTable(outcome);
  html += Heading("Timeline") + Timelines(problem, outcome);
  return html + "</html>\n";
}

}  // namespace pipewright
