#include "plan/simulate/trace.h"

#include <algorithm>

#include "base/json.h"
#include "plan/actions.h"
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

namespace {

class ChromeWriter {
 public:
  explicit ChromeWriter(size_t ranks) {
    for (size_t r = 0; r < ranks; ++r)
      Add({{"name", "thread_name"},
           {"ph", "M"},
           {"pid", 0},
           {"tid", r},
           {"args", {{"name", "rank " + std::to_string(r)}}}});
  }

  void Add(const Json& event) {
    if (!first_) out_ += ",\n";
    first_ = false;
    out_ += event.dump();
  }

  // `position` in the rank's list; -1: not known.
  void Add(const TraceAction& e, int position) {
    const Action& a = e.action;
    Json event = {{"name", ToText(a)},
                  {"ph", "X"},
                  {"pid", a.kind == ActionKind::kLoad ? 1 : 0},  // loads have their own row
                  {"tid", e.rank},
                  {"ts", e.start},
                  {"dur", e.end - e.start},
                  {"cname", Color(a.kind)},
                  {"args", {{"step", e.step}, {"stage", a.stage}}}};
    if (a.microbatch >= 0) event["args"]["microbatch"] = a.microbatch;
    if (position >= 0) event["args"]["position"] = position;
    Add(event);
  }

  std::string Take() { return out_ + "\n]}\n"; }

 private:
  std::string out_ = "{\"traceEvents\":[\n";
  bool first_ = true;
};

}  // namespace

std::string ChromeTrace(const std::vector<TraceAction>& actions, int ranks) {
  ChromeWriter writer(static_cast<size_t>(ranks));
  for (const TraceAction& action : actions) writer.Add(action, -1);
  return writer.Take();
}

std::string ChromeTrace(const Plan& plan, const Trace& trace) {
  ChromeWriter writer(trace.ranks.size());
  for (const auto* lists : {&trace.ranks, &trace.loads})
    for (size_t r = 0; r < lists->size(); ++r)
      for (const TimedAction& e : (*lists)[r])
        writer.Add({static_cast<int>(r), e.step, plan.ranks[r][e.action], e.start, e.end},
                   e.action);
  for (size_t i = 0; i < trace.transfers.size(); ++i) {
    const TraceTransfer& t = trace.transfers[i];
    std::string name = std::to_string(t.from_stage) + (t.backward ? "SEND_B" : "SEND_F") +
                       std::to_string(t.microbatch) + ">" + std::to_string(t.to_stage);
    Json event = {{"name", name}, {"cat", "transfer"},  {"ph", "s"},    {"id", i},
                  {"pid", 0},     {"tid", t.from_rank}, {"ts", t.start}};
    writer.Add(event);
    event["ph"] = "f";
    event["bp"] = "e";
    event["tid"] = t.to_rank;
    event["ts"] = t.end;
    writer.Add(event);
  }
  return writer.Take();
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
    case ActionKind::kStep:
      return 's';
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
  // A column is as long as the shortest action if that fits.
  double column = std::max(shortest, end / std::max(1, columns));
  std::string out;
  size_t width = std::to_string(trace.ranks.empty() ? 0 : trace.ranks.size() - 1).size();
  for (size_t r = 0; r < trace.ranks.size(); ++r) {
    std::string label = std::to_string(r);
    std::string line;
    for (const TimedAction& e : trace.ranks[r]) {
      // A column shows the action that runs at its middle.
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
