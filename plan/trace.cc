#include "plan/trace.h"

#include <algorithm>

#include "plan/actions.h"
#include "plan/json.h"
#include "plan/plan_text.h"

namespace pipewright {

static const char* Color(ActionKind kind) {
  switch (kind) {
    case ActionKind::kForward:
      return "thread_state_running";
    case ActionKind::kInputGrad:
      return "thread_state_iowait";
    case ActionKind::kWeightGrad:
      return "thread_state_runnable";
    case ActionKind::kBackward:
      return "rail_response";
    default:
      return "rail_animation";
  }
}

std::string ChromeTrace(const Plan& plan, const Trace& trace) {
  std::string out = "{\"traceEvents\":[\n";
  bool first = true;
  auto add = [&](const Json& event) {
    if (!first) out += ",\n";
    first = false;
    out += event.dump();
  };
  for (size_t r = 0; r < trace.ranks.size(); ++r)
    add({{"name", "thread_name"},
         {"ph", "M"},
         {"pid", 0},
         {"tid", r},
         {"args", {{"name", "rank " + std::to_string(r)}}}});
  for (size_t r = 0; r < trace.ranks.size(); ++r)
    for (const TimedAction& e : trace.ranks[r]) {
      const Action& a = plan.ranks[r][e.action];
      add({{"name", ToText(a)},
           {"ph", "X"},
           {"pid", 0},
           {"tid", r},
           {"ts", e.start},
           {"dur", e.end - e.start},
           {"cname", Color(a.kind)},
           {"args",
            {{"step", e.step},
             {"stage", a.stage},
             {"microbatch", a.microbatch},
             {"position", e.action}}}});
    }
  for (size_t r = 0; r < trace.loads.size(); ++r)
    for (const TimedAction& e : trace.loads[r])
      add({{"name", ToText(plan.ranks[r][e.action])},
           {"ph", "X"},
           {"pid", 1},  // a line of its own
           {"tid", r},
           {"ts", e.start},
           {"dur", e.end - e.start},
           {"args", {{"step", e.step}, {"stage", plan.ranks[r][e.action].stage}}}});
  for (size_t i = 0; i < trace.transfers.size(); ++i) {
    const TraceTransfer& t = trace.transfers[i];
    std::string name = std::to_string(t.from_stage) + (t.backward ? "SEND_B" : "SEND_F") +
                       std::to_string(t.microbatch) + ">" + std::to_string(t.to_stage);
    Json event = {{"name", name}, {"cat", "transfer"},  {"ph", "s"},    {"id", i},
                  {"pid", 0},     {"tid", t.from_rank}, {"ts", t.start}};
    add(event);
    event["ph"] = "f";
    event["bp"] = "e";
    event["tid"] = t.to_rank;
    event["ts"] = t.end;
    add(event);
  }
  return out + "\n]}\n";
}

static char Letter(const Action& a) {
  switch (a.kind) {
    case ActionKind::kForward:
      return static_cast<char>('0' + a.microbatch % 10);
    case ActionKind::kInputGrad:
      return 'i';
    case ActionKind::kWeightGrad:
      return 'w';
    case ActionKind::kBackward:
      return 'b';
    default:
      return 'o';
  }
}

std::string TextTimeline(const Plan& plan, const Trace& trace, int columns) {
  double end = 0, shortest = 0;
  for (const auto& events : trace.ranks)
    for (const TimedAction& e : events) {
      end = std::max(end, e.end);
      double time = e.end - e.start;
      if (time > 0 && (shortest == 0 || time < shortest)) shortest = time;
    }
  // A column is the shortest action where that fits.
  double column = std::max(shortest, end / std::max(1, columns));
  std::string out;
  size_t width = std::to_string(trace.ranks.empty() ? 0 : trace.ranks.size() - 1).size();
  for (size_t r = 0; r < trace.ranks.size(); ++r) {
    std::string label = std::to_string(r);
    std::string line;
    for (const TimedAction& e : trace.ranks[r]) {
      // A column shows what runs in its middle.
      double from = e.start / column - 0.5, to = e.end / column - 0.5;
      size_t begin = from <= 0 ? 0 : static_cast<size_t>(from) + (from > static_cast<size_t>(from));
      size_t stop = to <= 0 ? 0 : static_cast<size_t>(to) + (to > static_cast<size_t>(to));
      if (line.size() < begin) line.resize(begin, '.');
      if (line.size() < stop) line.resize(stop, Letter(plan.ranks[r][e.action]));
    }
    out += "rank " + std::string(width - label.size(), ' ') + label + "  " + line + "\n";
  }
  return out;
}

}  // namespace pipewright
