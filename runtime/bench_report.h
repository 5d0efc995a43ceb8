// What `bench` says: measurements of all ranks as text, JSON, costs and trace.
#pragma once
#include <cstdint>
#include <map>
#include <utility>
#include <vector>

#include "plan/json.h"
#include "plan/run_plan.h"
#include "runtime/bench.h"
#include "runtime/exec/executor.h"

namespace pipewright {

// Of one rank, over the measured steps. Seconds.
struct RankMeasurements {
  std::map<std::pair<int, ActionKind>, std::vector<double>> actions;  // (stage, kind): each one's
  std::vector<double> busy;  // of each step: in compute and STEP
  std::vector<double> step_ends;
  int64_t inputs_in_time = 0, inputs_late = 0;  // compute actions that did not, or did, wait
  double waited = 0;                            // for messages
  int64_t peak_bytes = 0;                       // of tensors, weights included
};

void AddMeasurements(const std::vector<TraceEvent>& step, RankMeasurements& to);
Json WriteMeasurements(const RankMeasurements& measured);

// The link between ranks 0 and 1, in microseconds and bytes, as costs have it. Collective.
Json LinkCostsJson(Transport& transport);

// `ranks`: {"stages", "link", "measured", "trace"} of each rank; `bodies`: see DescribeBodies.
// Prints, and writes the files that `options` names. Throws Error where one cannot be written.
void ReportBench(const RunPlan& run, const std::vector<Json>& ranks, const std::string& bodies,
                 const BenchOptions& options);

}  // namespace pipewright
