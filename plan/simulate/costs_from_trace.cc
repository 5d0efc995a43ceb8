#include "plan/simulate/costs_from_trace.h"

#include <map>
#include <set>
#include <tuple>

#include "base/error.h"
#include "plan/plan_text.h"

namespace pipewright {

namespace {

std::tuple<int, int, int, int, int> KeyOf(const Action& a) {
  return {static_cast<int>(a.kind), a.stage, a.microbatch, a.overlap_stage, a.overlap_microbatch};
}

}  // namespace

int StepsOf(const std::vector<TraceAction>& measured) {
  std::set<int> steps;
  for (const TraceAction& action : measured) steps.insert(action.step);
  return static_cast<int>(steps.size());
}

std::function<double(int, int, const Action&)> DurationsOf(const std::vector<TraceAction>& measured,
                                                           const std::string& path) {
  std::map<int, int> place;  // step number in the trace -> index
  for (const TraceAction& action : measured) place[action.step];
  int count = 0;
  for (auto& [step, at] : place) at = count++;
  using Times = std::map<std::tuple<int, int, int, int, int>, double>;
  std::map<int, std::vector<Times>> ranks;
  for (const TraceAction& action : measured) {
    std::vector<Times>& steps = ranks[action.rank];
    steps.resize(static_cast<size_t>(count));
    Times& times = steps[static_cast<size_t>(place[action.step])];
    if (!times.emplace(KeyOf(action.action), action.end - action.start).second)
      throw Error(path,
                  "its step " + std::to_string(action.step) + " has " + ToText(action.action) +
                      " on rank " + std::to_string(action.rank) + " twice",
                  "each step of the trace needs a number of its own (\"args\": {\"step\": N})");
  }
  return [ranks = std::move(ranks), count, path](int rank, int step, const Action& action) {
    const auto own = ranks.find(rank);
    if (own != ranks.end()) {
      const Times& times = own->second[static_cast<size_t>(step % count)];
      if (auto found = times.find(KeyOf(action)); found != times.end()) return found->second;
    }
    if (action.kind == ActionKind::kStep) return 0.0;
    throw Error(path, "its step " + std::to_string(step % count) + " has no " +
                          ToText(action) + " on rank " + std::to_string(rank),
                "replay the plan that was run");
  };
}

}  // namespace pipewright
