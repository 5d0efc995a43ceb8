// Runs candidates, and what was measured of them.
#pragma once
#include <cstdint>
#include <string>
#include <vector>

#include "formats/job.h"
#include "plan/tune/problem.h"
#include "tune/job/request.h"
#include "tune/measure/budget.h"

namespace pipewright {

// The file beside a job whose schedule is not made by its name.
inline constexpr char kTunePlan[] = "plan.csv";

struct TuneRow {
  TuneCandidate candidate;
  bool as_given = false;      // the job as it is
  bool in_process = false;    // ranks are threads of one process
  bool own_recompute = false;  // recomputes as the job says, also parts of stages
  bool variant = false;       // runs otherwise than the model of costs can tell
  double expected = 0;        // seconds: ExpectedStep before its first run; 0: it did not run
  std::vector<double> steps;  // seconds, the median of each round
  bool slower = false;        // clearly, so that it ran in fewer rounds than others
  std::string binds = {};     // WhatBinds
  double others = 0;          // most cores that other programs used meanwhile
  int64_t process_bytes = 0;  // measured: the largest process of any rank
  int64_t tensor_bytes = 0;   // measured under a memory limit: tensors of the largest rank
  int64_t needed_bytes = 0;   // with checks, which short runs hardly ever show
  double unforeseen = 0;      // bytes beyond its prediction that a rank over its limit needs
  // By rank, what a run of a few steps does not show, if its memory was measured: checks, and sums
  // of gradients of earlier minibatches.
  std::vector<int64_t> unseen = {};
  std::string failure;        // why it did not run; empty: it did, or was not tried
};

// Returns the job file of a candidate, to be written to `path`, beside its plan.
std::string JobText(const Job& job, const TuneRow& row, const std::string& path);

// Returns the best candidate's ways to run that only a measurement can tell apart: the other kind
// of ranks, and other bodies where the job leaves them open and modules have both.
std::vector<TuneRow> VariantsOf(const TuneRow& best, const TuneRequest& request, const Job& job,
                                const TuneProblem& problem);

// Returns the predicted step of a candidate times what the runs of other candidates took longer
// than predicted: those with as many ranks, or all if there are none. The modules are measured at
// another time, without messages and the work between modules.
double ExpectedStep(const TuneCandidate& candidate, const std::vector<TuneRow>& rows);

// Returns true if a measured row is slower than the best of `rows` by more than a quarter, and by
// more than two rounds of any row differ: the speed of a shared machine may change between rounds.
bool IsClearlySlower(const TuneRow& row, const std::vector<TuneRow>& rows);

// Returns true if several rows that still run are within 5 % of the best: a few rounds cannot tell
// them apart.
bool SeveralAreFastest(const std::vector<TuneRow>& rows);

// Returns true if DropOverLimit measures memory: of the tensors of training, by processes here.
bool MeasuresMemory(const TuneRequest& request);

// Measures the candidates in turn, so that a busy moment of the machine affects all of them. After
// the first round, adds the variants of the fastest, and leaves out those that are clearly slower
// (the job as given only if it takes twice as long as the best, since gains are told by its time).
// If SeveralAreFastest then, there are as many rounds again, unless there is only one, and the
// first no longer counts, which variants do not have. Notes candidates that fail, and what the
// budget cut off. Candidates of inference also fail if their outputs differ from those of the first
// that runs, by more than rounding.
void MeasureRows(const TuneRequest& request, const Job& job, const TuneProblem& problem,
                 const TuneBudget& budget, std::vector<TuneRow>& rows,
                 std::vector<std::string>& notes);

// Measures the tensors of the fastest candidate of training, drops it if a rank is over its limit,
// and goes on with the next. Returns false if none is left. Sorts the rows.
bool DropOverLimit(const TuneRequest& request, const Job& job, const TuneProblem& problem,
                   const TuneBudget& budget, std::vector<TuneRow>& rows,
                   std::vector<std::string>& notes);

// Sorts rows: measured ones by their time (those that are clearly slower last, since they ran in
// other rounds), then those that were only predicted, then failed ones.
// Predictions have the times of lists, so those of candidates that compute with autograd come last.
void SortRows(std::vector<TuneRow>& rows);

}  // namespace pipewright
