// Compares a measured trace with the simulated one.
#pragma once
#include <string>
#include <string_view>
#include <vector>

#include "plan/plan.h"
#include "plan/simulate/trace.h"

namespace pipewright {

// Reads the actions of a Chrome trace as ChromeTrace writes it: complete events ("ph": "X") whose
// name is an action and whose tid is the rank; "step" is among their args, or 0 if absent. Skips
// other events. Throws Error naming `path` if there are none.
std::vector<TraceAction> ReadChromeTrace(std::string_view text, const std::string& path);

// `stage` -1 means all stages. Medians of one action's time; count 0 means no such action.
struct ComparedKind {
  ActionKind kind = ActionKind::kForward;
  int stage = -1;
  int64_t predicted_count = 0, measured_count = 0;
  double predicted = 0, measured = 0;
};

struct ComparedRank {
  double predicted_busy = 0, measured_busy = 0;  // compute time of a step, median over steps
  double predicted_idle = 0, measured_idle = 0;  // the rest of the step's time
};

struct Comparison {
  // Time of one step: the median from one step's end to the next one's; if there is only one step,
  // from its first start to its last end.
  double predicted_step = 0, measured_step = 0;
  int predicted_steps = 0, measured_steps = 0;
  std::vector<ComparedKind> kinds;   // all stages, in the order of ActionKind
  std::vector<ComparedKind> stages;  // compute actions, by stage, then kind
  std::vector<ComparedRank> ranks;
};

// Throws Error if the measured trace has other ranks or stages than the predicted one.
Comparison CompareTraces(const std::vector<TraceAction>& predicted,
                         const std::vector<TraceAction>& measured);

// Returns where a rank's compute actions of the first step differ, as "rank 0 ran 0F2 as its action
// 3, the plan has 0B0 there", or "" if they are the same. `microbatches` is the number per step of
// the plan.
std::string OrderDifference(const std::vector<TraceAction>& predicted,
                            const std::vector<TraceAction>& measured, int microbatches);

}  // namespace pipewright
