// Runs candidates, and what was measured of them.
#pragma once
#include <string>
#include <vector>

#include "formats/job.h"
#include "plan/tune/search.h"
#include "tune/request.h"

namespace pipewright {

struct TuneRow {
  TuneCandidate candidate;
  bool as_given = false;      // the job as it is
  std::vector<double> steps;  // seconds, the median of each round
  std::string failure;        // why it did not run; empty: it did, or was not tried
};

// Returns the job file of a candidate, to be written into the output folder.
std::string JobText(const TuneRequest& request, const Job& job, const TuneCandidate& candidate);

// Measures the candidates in turn, so that a busy moment of the machine affects all of them. Notes
// those that fail.
void MeasureRows(const TuneRequest& request, const Job& job, std::vector<TuneRow>& rows,
                 std::vector<std::string>& notes);

// Sorts rows: measured ones by their time, then those that were only predicted, then failed ones.
void SortRows(std::vector<TuneRow>& rows);

}  // namespace pipewright
