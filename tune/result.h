// What a tune found, as a table and as JSON.
#pragma once
#include <string>
#include <vector>

#include "base/json.h"
#include "plan/tune/help.h"
#include "plan/tune/search.h"
#include "tune/rounds.h"

namespace pipewright {

// The result of a tune, and the texts of its files.
struct TuneOutcome {
  std::vector<TuneRow> rows;  // the winner first
  TuneResult found;
  std::vector<std::string> notes;
  std::vector<TuneHelp> help;  // what would make the winner faster
  std::vector<double> limits;  // bytes, by rank; empty: none
  Json report;
  bool infers = false;
  bool estimated = false;    // predictions are for other machines
  bool interrupted = false;  // by SIGINT or SIGTERM: there may be better ones
  bool cut_off = false;      // by the budget or an interrupt, before its --rounds ended
};

// Returns text such as "10.5 ms", with more digits for less than 10 ms.
std::string StepText(double seconds);

// Returns text such as "zbv with 4 stages on 2 ranks with 4 microbatches, 1 thread a rank", or "the
// run as given" (for inference, "the plain run").
std::string RowText(const TuneRow& row, bool infers);

// Returns a table of the rows, the head first. `estimated`: predictions are for other machines.
std::vector<std::vector<std::string>> TuneCells(const std::vector<TuneRow>& rows, bool estimated);

// Returns which candidate won, and by how much: "the fastest is zbv on 2 ranks with 4 microbatches:
// 31.0 ms, 12 % less than the run as given".
std::string TuneVerdict(const TuneOutcome& outcome);

// Returns how many candidates were simulated and left out: "candidates: 12 simulated, ...".
std::string TuneCounts(const TuneResult& found);

Json TuneReport(const TuneOutcome& outcome);

}  // namespace pipewright
