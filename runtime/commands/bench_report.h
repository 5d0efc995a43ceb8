// Reports the measurements of all ranks for `bench`: as text, JSON, costs and trace.
#pragma once
#include <cstdint>
#include <map>
#include <utility>
#include <vector>

#include <c10/core/Device.h>

#include "base/json.h"
#include "plan/run/run_plan.h"
#include "runtime/commands/bench.h"
#include "runtime/exec/executor.h"

namespace pipewright {

// Holds the measurements of one rank over the measured steps, in seconds.
struct RankMeasurements {
  std::map<std::pair<int, ActionKind>, std::vector<double>> actions;  // durations by (stage, kind)
  std::vector<double> busy;  // by step: time in compute and STEP
  std::vector<double> step_ends;
  std::vector<int> firsts;  // steps that do not directly follow a measured step
  int64_t inputs_in_time = 0, inputs_late = 0;  // compute actions that did not, or did, wait
  double waited = 0;                            // for messages
  int steps() const { return static_cast<int>(busy.size()); }
};

// Adds the events of one step. Time spent on messages after a compute action, except for waiting,
// counts toward that action.
void AddMeasurements(const std::vector<TraceEvent>& step, RankMeasurements& to);
// Returns true if the times of a compute action vary so much that their median says little.
bool HasNoise(const RankMeasurements& measured);
Json WriteMeasurements(const RankMeasurements& measured);

// Measures the link between ranks 0 and 1, which compute on devices (MeasureLink), and returns it
// in the form of the costs file, in microseconds and bytes. Collective.
Json LinkCostsJson(Transport& transport, c10::Device device);

// Prints the report and writes the files that `options` names. `ranks` holds {"stages", "link",
// "measured", "others", "steps", "trace"} of each rank; for `bodies` see DescribeBodies. Throws
// Error if a file cannot be written.
void ReportBench(const RunPlan& run, const std::vector<Json>& ranks, const std::string& bodies,
                 const BenchOptions& options);

}  // namespace pipewright
