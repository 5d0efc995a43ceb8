// Rows of candidates, in order and as a table.
#include "tune/result.h"

#include <gtest/gtest.h>

#include <string>

#include "base/table.h"

#include "plan/tune/predict.h"
#include "tests/plan/tune/chain.h"
#include "tune/page.h"
#include "tune/rounds.h"
#include "tune/tune.h"

namespace pipewright {
namespace {

TuneRow Row(double predicted, std::vector<double> steps, const std::string& failure = "") {
  TuneRow row;
  row.candidate.schedule = "gpipe";
  row.candidate.step = predicted;
  row.candidate.microbatches = 4, row.candidate.microbatch = 8;
  row.candidate.conf.stage_to_ranks = {{0}};
  row.candidate.peak_bytes = {1024, 2048};
  row.steps = std::move(steps);
  row.failure = failure;
  return row;
}

// The median counts, not the best round; what was not measured comes after what was.
TEST(TuneResult, MeasuredRowsComeFirst) {
  std::vector<TuneRow> rows = {Row(1, {}, "no memory"), Row(2, {}), Row(1, {}), Row(9, {0.5, 7, 8}),
                               Row(9, {5, 6, 5})};
  SortRows(rows);
  std::vector<double> order;
  for (const TuneRow& row : rows)
    order.push_back(row.steps.empty() ? row.candidate.step : row.steps[0]);
  EXPECT_EQ(order, (std::vector<double>{5, 0.5, 1, 2, 1}));
  EXPECT_EQ(rows.back().failure, "no memory");
}

// Rows that were dropped in a slow or fast moment of the machine are compared with each other only.
TEST(TuneResult, SlowerRowsComeLater) {
  std::vector<TuneRow> rows = {Row(9, {4}), Row(9, {3}), Row(9, {5, 6, 5}), Row(1, {})};
  rows[0].slower = rows[1].slower = true;
  SortRows(rows);
  std::vector<double> order;
  for (const TuneRow& row : rows) order.push_back(row.steps.empty() ? 0 : row.steps[0]);
  EXPECT_EQ(order, (std::vector<double>{5, 3, 4, 0}));
}

// Failed rows and those that did not run do not count.
TEST(TuneResult, SeveralMayBeFastest) {
  EXPECT_FALSE(
      SeveralAreFastest({Row(1, {}), Row(1, {0.5, 0.5}, "over the limit"), Row(1, {1, 2})}));
  EXPECT_FALSE(SeveralAreFastest({Row(1, {5, 6, 5}), Row(1, {1, 5.3, 5.3})}));
  EXPECT_TRUE(SeveralAreFastest({Row(1, {5, 6, 5}), Row(1, {5.2, 5.2, 9}), Row(1, {7, 7, 7})}));
}

// Once the time is over, what others took beyond their predictions counts: nothing else is known.
TEST(TuneResult, WhatWasNotMeasuredIsExpectedToExceedItsPrediction) {
  TuneRequest request;
  request.memory = "2200";
  TuneProblem problem;
  problem.memory = 2200;
  std::vector<std::string> notes;
  std::vector<TuneRow> rows = {Row(1, {1}), Row(1, {2}), Row(1, {3}, "over the limit")};
  rows[1].candidate.peak_bytes = {1024, 1500};
  std::vector<TuneRow> unmeasured = rows;
  EXPECT_TRUE(DropOverLimit(request, Job(), problem, TuneBudget(0), unmeasured, notes));
  EXPECT_EQ(unmeasured[0].steps, std::vector<double>{1});
  rows[2].unforeseen = 300;  // 2048 and 300 are more than 2200
  EXPECT_TRUE(DropOverLimit(request, Job(), problem, TuneBudget(0), rows, notes));
  EXPECT_EQ(rows[0].steps, std::vector<double>{2});
}

// Runs of candidates with as many ranks tell best how much longer a run takes than predicted.
TEST(TuneResult, ExpectedStepsFollowWhatWasMeasured) {
  TuneCandidate candidate;
  candidate.step = 10, candidate.ranks = 2;
  std::vector<TuneRow> rows = {Row(4, {})};
  EXPECT_EQ(ExpectedStep(candidate, rows), 10);
  rows.push_back(Row(4, {9, 8, 7}));  // of one rank
  EXPECT_EQ(ExpectedStep(candidate, rows), 20);
  rows.push_back(Row(4, {6}));
  rows.back().candidate.ranks = 2;
  EXPECT_EQ(ExpectedStep(candidate, rows), 15);
}

TEST(TuneResult, ClearlySlowerIsMoreThanRoundsDiffer) {
  EXPECT_FALSE(IsClearlySlower(Row(1, {}), {Row(1, {4}), Row(1, {})}));
  EXPECT_FALSE(IsClearlySlower(Row(1, {4.9}), {Row(1, {4}), Row(1, {3}, "failed")}));
  EXPECT_TRUE(IsClearlySlower(Row(1, {5.1}), {Row(1, {4})}));
  // The machine became slower by half between two rounds of some row, maybe before this one.
  EXPECT_FALSE(IsClearlySlower(Row(1, {5.9}), {Row(1, {4}), Row(1, {6, 9})}));
  EXPECT_TRUE(IsClearlySlower(Row(1, {6.1}), {Row(1, {4}), Row(1, {6, 9})}));
}

TEST(TuneResult, VariantsHaveNotRunYet) {
  TuneRow best = Row(4, {9, 8});
  best.candidate.ranks = 2;
  best.as_given = true;
  best.process_bytes = 7;
  const std::vector<TuneRow> variants = VariantsOf(best, {}, {}, {});
  ASSERT_EQ(variants.size(), 1u);
  EXPECT_TRUE(variants[0].in_process && variants[0].variant && !variants[0].as_given);
  EXPECT_EQ(variants[0].candidate.step, 4);
  EXPECT_TRUE(variants[0].steps.empty());
  EXPECT_EQ(variants[0].process_bytes, 0);
}

TEST(TuneResult, RowsSayHowManyMinibatches) {
  Job job;
  job.text = R"({"data": {}, "microbatches": 12, "minibatch_size": 96})";
  job.microbatches = 12, job.minibatch_size = 96;
  TuneRow row = Row(1, {});
  TuneOutcome outcome;
  outcome.rows = {row};
  EXPECT_FALSE(ParseJson(JobText(job, row, "to.json"), "to").contains("accumulate"));
  EXPECT_FALSE(TuneReport(outcome)["candidates"][0].contains("minibatches"));
  outcome.rows[0].candidate.minibatches = row.candidate.minibatches = 3;
  const Json text = ParseJson(JobText(job, row, "to.json"), "to");
  EXPECT_EQ(text["accumulate"], 3);
  EXPECT_EQ(text["minibatch_size"], 32);
  EXPECT_EQ(text["microbatches"], 4);
  EXPECT_EQ(TuneReport(outcome)["candidates"][0]["minibatches"], 3);
  EXPECT_NE(FormatTable(TuneCells(outcome.rows, false)).find("3 x 4 of 8"), std::string::npos);
}

TEST(TuneResult, VerdictComparesOnlyWithARunThatCounts) {
  TuneOutcome outcome;
  outcome.rows = {Row(1, {0.8, 0.8}), Row(1, {1, 1})};
  outcome.rows[1].as_given = true;
  const std::string fastest = "the fastest is gpipe on 1 rank with 4 microbatches: 800.0 ms";
  EXPECT_EQ(TuneVerdict(outcome), fastest + ", 20 % less than the run as given");
  outcome.rows[1].steps = {0.5, 0.5};
  outcome.rows[1].failure = "rank 0 takes more than --memory";
  EXPECT_EQ(TuneVerdict(outcome), fastest);
  outcome.rows[1].failure = "";
  outcome.rows[1].steps = {1};
  EXPECT_EQ(TuneVerdict(outcome),
            fastest + ", 20 % less than the run as given, which was measured once");
  outcome.rows[0].steps = {0.8}, outcome.rows[1].steps = {1, 1};
  EXPECT_EQ(TuneVerdict(outcome),
            fastest + ", 20 % less than the run as given, and was measured once");
  outcome.rows[0].as_given = true;
  EXPECT_EQ(TuneVerdict(outcome), "the fastest is the run as given: 800.0 ms, measured once");
  outcome.infers = true;
  EXPECT_EQ(TuneVerdict(outcome), "the fastest is the plain run: 800.0 ms, measured once");
}

TEST(TuneResult, NotesTellRowsApart) {
  TuneRow row = Row(1, {});
  EXPECT_EQ(RowText(row, false),
            "gpipe with 1 stage on 1 rank with 4 microbatches, 1 thread a rank");
  row.candidate.ranks = 2, row.candidate.microbatches = 1;
  row.variant = row.in_process = true;
  EXPECT_EQ(RowText(row, false),
            "gpipe with 1 stage on 2 ranks with 1 microbatch, 1 thread a rank, in process");
  row.as_given = true;
  EXPECT_EQ(RowText(row, false), "the run as given");
  EXPECT_EQ(RowText(row, true), "the plain run");
}

TEST(TuneResult, TableAndReport) {
  TuneOutcome outcome;
  outcome.rows = {Row(0.0105, {0.011, 0.012, 0.010}), Row(0.5, {}, "no memory")};
  outcome.rows[1].as_given = true;
  outcome.found.pruned = 3;
  outcome.notes = {"a note"};
  const std::string table = FormatTable(TuneCells(outcome.rows, false));
  for (const char* text :
       {"10.5 ms", "11.0 ms", "10.0 ms - 12.0 ms", "4 of 8", "2 KiB", "failed", "as given"})
    EXPECT_NE(table.find(text), std::string::npos) << text << "\n" << table;
  outcome.rows[1].candidate.step = 0.00002;
  EXPECT_NE(FormatTable(TuneCells(outcome.rows, false)).find("0.0200 ms"), std::string::npos);
  const Json report = TuneReport(outcome);
  EXPECT_EQ(report["candidates"][0]["measured"], Json({0.011, 0.012, 0.010}));
  EXPECT_FALSE(report["candidates"][0].contains("failure"));
  EXPECT_EQ(report["candidates"][1]["failure"], "no memory");
  EXPECT_EQ(report["pruned"], 3);
  EXPECT_EQ(report["notes"], Json({"a note"}));
}

TEST(TuneResult, StartLine) {
  TuneRequest request;
  request.package = "m.pkg", request.output = "out";
  TuneOutcome outcome;
  outcome.rows = {Row(1, {})};
  outcome.rows[0].candidate.ranks = 3;
  EXPECT_EQ(StartLine(request, outcome),
            "pipewright-run -n 3 train m.pkg out/job.json --conf out/conf.json");
}

TEST(TuneResult, PageComparesTimelines) {
  const TuneProblem problem = ProblemOf(std::vector<double>(4, 1e-3), 8);
  TuneOutcome outcome;
  outcome.found = SearchTune(problem, 100);
  for (const TuneCandidate& candidate : outcome.found.best)
    if (candidate.ranks == 2) {
      outcome.rows.emplace_back();
      outcome.rows.back().candidate = candidate;
    }
  ASSERT_GE(outcome.rows.size(), 2u);
  outcome.rows.emplace_back();
  outcome.rows.back().as_given = true;
  outcome.rows.back().candidate =
      Predict(problem, problem.profiles[0], GroupModules(4, 1), "1f1b", 8, {});
  const std::string number = std::to_string(outcome.rows.size());
  outcome.notes = {"<a> & b"};
  outcome.help = {{"links twice as fast", outcome.rows[0].candidate.step / 2}};
  TuneRequest request;
  request.package = "m.pkg";
  const std::string page = TunePage(request, problem, outcome, "start --it");
  for (const char* text : {"start --it", "&lt;a&gt; &amp; b", "links twice as fast", "50.0 %",
                           "winner", "candidate ", "<svg", "predicted"})
    EXPECT_NE(page.find(text), std::string::npos) << text;
  EXPECT_NE(page.find("<details open><summary>The winner and candidate " + number +
                      ", as given (1f1b on 1 rank, 8 microbatches)</summary>"),
            std::string::npos);
  EXPECT_NE(page.find("<details><summary>The winner and candidate 2 ("), std::string::npos);
  EXPECT_NE(page.find("<th>candidate " + number + "</th>"), std::string::npos) << "memory";
  const std::string more = WithNotes(page, {"x < y", "z"});
  EXPECT_NE(more.find("<li>&lt;a&gt; &amp; b</li>\n<li>x &lt; y</li>\n<li>z</li>\n</ul>"),
            std::string::npos);
  outcome.rows.back().candidate.minibatches = 3;
  EXPECT_NE(TunePage(request, problem, outcome, "")
                .find("<summary>The winner and one of 3 minibatches of candidate " + number +
                      ", as given"),
            std::string::npos);
  outcome.rows.back().candidate.minibatches = 1;
  EXPECT_EQ(page.find("estimate"), std::string::npos);
  EXPECT_NE(page.find("<title>Tuning of m.pkg<"), std::string::npos);
  request.model = "model.pt2";  // the package is temporary
  EXPECT_NE(TunePage(request, problem, outcome, "").find("<title>Tuning of model.pt2<"),
            std::string::npos);
  request.machines = "m.json";
  EXPECT_NE(TunePage(request, problem, outcome, "").find("Every figure is an estimate for m.json"),
            std::string::npos);
}

}  // namespace
}  // namespace pipewright
