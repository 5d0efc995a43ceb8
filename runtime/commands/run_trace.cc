#include "runtime/commands/run_trace.h"

#include "plan/actions.h"

namespace pipewright {

void AddEvents(const std::vector<TraceEvent>& events, int step, double origin,
               std::vector<TimedAction>& out) {
  for (size_t i = 0; i < events.size(); ++i) {
    const TraceEvent& event = events[i];
    // A compute action begins when its inputs have arrived.
    const double start = IsCompute(event.action.kind) ? event.start + event.waited : event.start;
    TimedAction timed;
    timed.action = static_cast<int>(i);
    timed.step = step;
    timed.start = (start - origin) * 1e6;
    timed.end = (event.end - origin) * 1e6;
    timed.resident = static_cast<double>(event.resident);
    out.push_back(timed);
  }
}

Json WriteEvents(const std::vector<TimedAction>& events) {
  Json json = Json::array();
  for (const TimedAction& e : events) json.push_back({e.action, e.step, e.start, e.end, e.resident});
  return json;
}

ActionTrace ReadEvents(const std::vector<Json>& ranks) {
  ActionTrace trace;
  for (const Json& rank : ranks) {
    trace.ranks.emplace_back();
    for (const Json& event : rank) {
      TimedAction timed;
      timed.action = event[0], timed.step = event[1];
      timed.start = event[2], timed.end = event[3], timed.resident = event[4];
      trace.ranks.back().push_back(timed);
    }
  }
  return trace;
}

}  // namespace pipewright
