#include "plan/simulate/compare.h"

#include <algorithm>
#include <limits>
#include <map>

#include "base/error.h"
#include "base/json.h"
#include "base/median.h"
#include "plan/actions.h"
#include "plan/plan_text.h"

namespace pipewright {

namespace {

struct Side {
  std::map<std::pair<ActionKind, int>, std::vector<double>> times;  // (kind, stage; -1: all)
  std::map<int, std::pair<double, double>> steps;                   // first start, last end
  std::vector<std::map<int, double>> busy;                          // [rank] step -> compute time
  int stages = 0;

  explicit Side(const std::vector<TraceAction>& actions) {
    for (const TraceAction& e : actions) {
      double time = e.end - e.start;
      times[{e.action.kind, -1}].push_back(time);
      stages = std::max(stages, e.action.stage + 1);
      auto [step, first] = steps.insert({e.step, {e.start, e.end}});
      step->second.first = std::min(step->second.first, e.start);
      step->second.second = std::max(step->second.second, e.end);
      if (busy.size() <= static_cast<size_t>(e.rank)) busy.resize(e.rank + 1);
      double& sum = busy[e.rank][e.step];
      if (!IsCompute(e.action.kind)) continue;
      times[{e.action.kind, e.action.stage}].push_back(time);
      sum += time;
    }
  }

  double Step() const {
    std::vector<double> between;
    for (auto s = steps.begin(); s != steps.end(); ++s) {
      if (steps.size() == 1) between.push_back(s->second.second - s->second.first);
      if (s != steps.begin()) between.push_back(s->second.second - std::prev(s)->second.second);
    }
    return Median(std::move(between));
  }

  double Busy(size_t rank) const {
    std::vector<double> each;
    if (rank < busy.size())
      for (auto [step, time] : busy[rank]) each.push_back(time);
    return Median(std::move(each));
  }

  void Get(std::pair<ActionKind, int> key, int64_t& count, double& median) const {
    auto found = times.find(key);
    if (found == times.end()) return;
    count = static_cast<int64_t>(found->second.size());
    median = Median(found->second);
  }
};

}  // namespace

std::vector<TraceAction> ReadChromeTrace(std::string_view text, const std::string& path) {
  Json json = ParseJson(text, path);
  const Json* events = &json;
  if (json.is_object()) {
    if (!json.contains("traceEvents"))
      throw Error(path, "not a Chrome trace: \"traceEvents\" is missing");
    events = &json["traceEvents"];
  }
  if (!events->is_array()) throw Error(path, "not a Chrome trace: no list of events");
  std::vector<TraceAction> actions;
  for (const Json& event : *events) {
    if (!event.is_object() || event.value("ph", Json()) != "X") continue;
    auto number = [&](const char* key) {
      return event.contains(key) && event[key].is_number() ? event[key].get<double>() : -1;
    };
    if (!event.contains("name") || !event["name"].is_string() || number("tid") < 0) continue;
    TraceAction action;
    try {
      action.action = ParseAction(event["name"].get<std::string>(), path);
    } catch (const Error&) {
      continue;  // not an action
    }
    action.rank = static_cast<int>(number("tid"));
    action.start = event.value("ts", 0.0);
    action.end = action.start + std::max(0.0, number("dur"));
    if (event.contains("args") && event["args"].is_object() && event["args"].contains("step") &&
        event["args"]["step"].is_number_integer())
      action.step = event["args"]["step"].get<int>();
    actions.push_back(action);
  }
  if (actions.empty())
    throw Error(path, "no actions in this trace",
                "an action is an event \"ph\": \"X\" named like 2F5, with the rank as \"tid\"");
  return actions;
}

Comparison CompareTraces(const std::vector<TraceAction>& predicted,
                         const std::vector<TraceAction>& measured) {
  Side left(predicted), right(measured);
  auto same = [](size_t a, size_t b, const char* what) {
    if (a != b)
      throw Error("trace", "it has " + std::to_string(b) + " " + what + ", the plan has " +
                               std::to_string(a));
  };
  same(left.busy.size(), right.busy.size(), "ranks");
  same(static_cast<size_t>(left.stages), static_cast<size_t>(right.stages), "stages");
  Comparison out;
  out.predicted_step = left.Step(), out.measured_step = right.Step();
  out.predicted_steps = static_cast<int>(left.steps.size());
  out.measured_steps = static_cast<int>(right.steps.size());
  std::map<std::pair<int, ActionKind>, bool> keys;  // by stage, then kind
  for (const Side* side : {&left, &right})
    for (const auto& [key, times] : side->times) keys[{key.second, key.first}] = true;
  for (const auto& [key, any] : keys) {
    ComparedKind kind{key.second, key.first};
    left.Get({kind.kind, kind.stage}, kind.predicted_count, kind.predicted);
    right.Get({kind.kind, kind.stage}, kind.measured_count, kind.measured);
    (kind.stage < 0 ? out.kinds : out.stages).push_back(kind);
  }
  for (size_t r = 0; r < left.busy.size(); ++r) {
    ComparedRank rank;
    rank.predicted_busy = left.Busy(r), rank.measured_busy = right.Busy(r);
    rank.predicted_idle = out.predicted_step - rank.predicted_busy;
    rank.measured_idle = out.measured_step - rank.measured_busy;
    out.ranks.push_back(rank);
  }
  return out;
}

std::string OrderDifference(const std::vector<TraceAction>& predicted,
                            const std::vector<TraceAction>& measured, int microbatches) {
  // [rank] the compute actions of the first step, ordered by start
  auto first_step = [&](std::vector<TraceAction> actions) {
    int first = std::numeric_limits<int>::max();
    for (const TraceAction& e : actions)
      if (IsCompute(e.action.kind)) first = std::min(first, e.step);
    std::stable_sort(actions.begin(), actions.end(),
                     [](const TraceAction& a, const TraceAction& b) { return a.start < b.start; });
    std::map<int, std::vector<std::string>> ranks;
    for (const TraceAction& e : actions) {
      if (e.step != first || !IsCompute(e.action.kind)) continue;
      Action action = e.action;
      action.version = -1;
      if (microbatches > 0) action.microbatch %= microbatches;
      if (microbatches > 0 && action.kind == ActionKind::kOverlap)
        action.overlap_microbatch %= microbatches;
      ranks[e.rank].push_back(ToText(action));
    }
    return ranks;
  };
  auto left = first_step(predicted), right = first_step(measured);
  for (auto& [rank, planned] : left) {
    const std::vector<std::string>& ran = right[rank];
    for (size_t i = 0; i < std::max(planned.size(), ran.size()); ++i) {
      std::string there = i < planned.size() ? planned[i] : "nothing";
      std::string here = i < ran.size() ? ran[i] : "nothing";
      if (here != there)
        return "rank " + std::to_string(rank) + " ran " + here + " as its action " +
               std::to_string(i) + ", the plan has " + there + " there";
    }
  }
  return "";
}

}  // namespace pipewright
