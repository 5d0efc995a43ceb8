#include "plan/simulate/trace.h"

#include <algorithm>
#include <climits>
#include <map>
#include <set>
#include <tuple>
#include <utility>

#include "base/json.h"
#include "plan/actions.h"
#include "plan/plan_text.h"
#include "plan/simulate/rank_account.h"

namespace pipewright {

std::vector<TraceAction> ActionsOf(const Plan& plan, size_t rank,
                                   const std::vector<TimedAction>& events) {
  std::vector<TraceAction> actions;
  int step = 0;  // step of the plan; a STEP belongs to the step of the backward before it
  for (const TimedAction& e : events) {
    const Action& a = plan.ranks[rank][static_cast<size_t>(e.action)];
    if (a.microbatch >= 0 && plan.microbatches > 0) step = a.microbatch / plan.microbatches;
    actions.push_back(
        {static_cast<int>(rank), e.step * std::max(1, plan.steps) + step, a, e.start, e.end});
  }
  return actions;
}

std::vector<TraceAction> ActionsOf(const Plan& plan, const ActionTrace& trace) {
  std::vector<TraceAction> actions;
  for (size_t r = 0; r < trace.ranks.size(); ++r)
    for (const TraceAction& action : ActionsOf(plan, r, trace.ranks[r])) actions.push_back(action);
  return actions;
}

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

constexpr int kRanks = 0, kLoads = 1;  // processes of the format; loads have rows of their own

class ChromeWriter {
 public:
  ChromeWriter(const Plan& plan, const ActionTrace& trace) : plan_(plan), trace_(trace) {}

  std::string Write(const Costs* costs) {
    Name("process_name", kRanks, 0, "ranks");
    for (size_t r = 0; r < trace_.ranks.size(); ++r)
      Name("thread_name", kRanks, r, "rank " + std::to_string(r));
    for (size_t r = 0; r < trace_.ranks.size(); ++r) Actions(kRanks, r, trace_.ranks[r]);
    bool named = false;
    for (size_t r = 0; r < trace_.loads.size(); ++r) {
      if (trace_.loads[r].empty()) continue;
      if (!std::exchange(named, true)) Name("process_name", kLoads, 0, "weights read from disk");
      Name("thread_name", kLoads, r, "rank " + std::to_string(r));
      Actions(kLoads, r, trace_.loads[r]);
    }
    Flows();
    for (size_t r = 0; costs && r < trace_.ranks.size(); ++r) Memory(static_cast<int>(r), *costs);
    for (size_t r = 0; !costs && r < trace_.ranks.size(); ++r) Resident(static_cast<int>(r));
    return out_ + "\n]}\n";
  }

 private:
  void Add(const Json& event) {
    if (!first_) out_ += ",\n";
    first_ = false;
    out_ += event.dump();
  }

  void Name(const char* what, int process, size_t rank, const std::string& name) {
    Add({{"name", what}, {"ph", "M"}, {"pid", process}, {"tid", rank}, {"args", {{"name", name}}}});
  }

  void Actions(int process, size_t rank, const std::vector<TimedAction>& events) {
    const std::vector<TraceAction> actions = ActionsOf(plan_, rank, events);
    for (size_t i = 0; i < actions.size(); ++i) {
      const TraceAction& e = actions[i];
      const Action& a = e.action;
      Json event = {
          {"name", ToText(a)},
          {"ph", "X"},
          {"pid", process},
          {"tid", rank},
          {"ts", e.start},
          {"dur", e.end - e.start},
          {"cname", Color(a.kind)},
          {"args", {{"step", e.step}, {"stage", a.stage}, {"position", events[i].action}}}};
      if (a.microbatch >= 0) event["args"]["microbatch"] = a.microbatch;
      Add(event);
    }
  }

  // An event that computes a microbatch of a stage, forward or backward.
  struct Computed {
    size_t rank = 0;
    const TimedAction* event = nullptr;
  };
  using Key = std::tuple<int, bool, int, int>;  // step, backward, stage, microbatch

  std::map<Key, Computed> Index() const {
    std::map<Key, Computed> found;
    for (size_t r = 0; r < trace_.ranks.size(); ++r)
      for (const TimedAction& e : trace_.ranks[r]) {
        const Action& a = plan_.ranks[r][static_cast<size_t>(e.action)];
        if (HasForward(a)) found[{e.step, false, a.stage, a.microbatch}] = {r, &e};
        if (HasBackward(a))
          found[{e.step, true, BackwardStage(a), BackwardMicrobatch(a)}] = {r, &e};
      }
    return found;
  }

  void Flows() {
    const std::map<Key, Computed> computed = Index();
    const bool neighbors = !HasTransfers(plan_);
    std::set<std::tuple<bool, int, int, int>> sent;  // backward, from, microbatch, to
    for (const std::vector<Action>& actions : plan_.ranks)
      for (const Action& a : actions) {
        if (IsSend(a.kind))
          sent.insert({a.kind == ActionKind::kSendBackward, a.stage, a.microbatch, PeerOf(a)});
        if (neighbors && HasForward(a)) sent.insert({false, a.stage, a.microbatch, a.stage + 1});
        if (neighbors && HasBackward(a))
          sent.insert({true, BackwardStage(a), BackwardMicrobatch(a), BackwardStage(a) - 1});
      }
    for (const auto& [key, source] : computed) {
      const auto& [step, backward, stage, microbatch] = key;
      const auto last = sent.upper_bound({backward, stage, microbatch, INT_MAX});
      for (auto at = sent.lower_bound({backward, stage, microbatch, INT_MIN}); at != last; ++at) {
        const auto target = computed.find({step, backward, std::get<3>(*at), microbatch});
        if (target != computed.end() && target->second.rank != source.rank)
          Flow(backward ? "gradient" : "value", source, target->second);
      }
    }
  }

  // Adds a flow, which begins within the one action and ends at the beginning of the other.
  void Flow(const char* what, const Computed& from, const Computed& to) {
    Json event = {{"name", what},
                  {"cat", "message"},
                  {"ph", "s"},
                  {"id", flows_++},
                  {"pid", kRanks},
                  {"tid", from.rank},
                  {"ts", (from.event->start + from.event->end) / 2}};
    Add(event);
    event["ph"] = "f";
    event["bp"] = "e";
    event["tid"] = to.rank;
    event["ts"] = to.event->start;
    Add(event);
  }

  void Memory(int rank, const Costs& costs) {
    double shown = -1;
    for (const MemoryAt& held :
         MemoryOverTime(BytesOfRank(plan_, rank, costs, RecomputeOf(plan_)),
                        trace_.ranks[static_cast<size_t>(rank)]))
      if (std::exchange(shown, held.bytes) != held.bytes) Count(rank, held.time, held.bytes);
  }

  void Resident(int rank) {
    double shown = 0;
    for (const TimedAction& event : trace_.ranks[static_cast<size_t>(rank)])
      if (std::exchange(shown, event.resident) != event.resident)
        Count(rank, event.end, event.resident);
  }

  void Count(int rank, double time, double bytes) {
    Add({{"name", "memory of rank " + std::to_string(rank)},
         {"ph", "C"},
         {"pid", kRanks},
         {"ts", time},
         {"args", {{"bytes", bytes}}}});
  }

  const Plan& plan_;
  const ActionTrace& trace_;
  std::string out_ = "{\"traceEvents\":[\n";
  bool first_ = true;
  int flows_ = 0;
};

}  // namespace

std::string ChromeTrace(const Plan& plan, const ActionTrace& trace, const Costs* costs) {
  return ChromeWriter(plan, trace).Write(costs);
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

double TimelineColumn(const ActionTrace& trace, int columns) {
  double end = 0, shortest = 0;
  for (const auto& events : trace.ranks)
    for (const TimedAction& e : events) {
      end = std::max(end, e.end);
      double time = e.end - e.start;
      if (time > 0 && (shortest == 0 || time < shortest)) shortest = time;
    }
  // A column is as long as the shortest action if that fits.
  return std::max(shortest, end / std::max(1, columns));
}

std::string TextTimeline(const Plan& plan, const ActionTrace& trace, int columns) {
  const double column = TimelineColumn(trace, columns);
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
