// What a tune found, as a table and as JSON.
#pragma once
#include <string>
#include <vector>

#include "base/json.h"
#include "plan/tune/search.h"
#include "tune/rounds.h"

namespace pipewright {

// The result of a tune, and the texts of its files.
struct TuneOutcome {
  std::vector<TuneRow> rows;  // the winner first
  TuneResult found;
  std::vector<std::string> notes;
  Json report;
};

std::string TuneTable(const std::vector<TuneRow>& rows);

Json TuneReport(const TuneOutcome& outcome);

}  // namespace pipewright
