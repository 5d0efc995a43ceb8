#include "plan/simulate/simulate.h"

#include <algorithm>
#include <map>

#include "base/error.h"
#include "plan/actions.h"
#include "plan/plan_text.h"

namespace pipewright {

double Duration(const Action& action, int rank, const Costs& costs,
                const std::vector<char>& recompute) {
  if (!IsCompute(action.kind)) return 0;
  const StageCosts& own = CostsOf(costs, action.stage, rank);
  auto again = [&](int stage) {
    if (recompute.empty() || !recompute[stage]) return 0.0;
    return std::max(0.0, CostsOf(costs, stage, rank).recompute);
  };
  switch (action.kind) {
    case ActionKind::kForward:
      return own.F;
    case ActionKind::kInputGrad:
      return own.I + again(action.stage);
    case ActionKind::kWeightGrad:
      return own.W;
    case ActionKind::kBackward:
      return own.B + again(action.stage);
    default: {
      const StageCosts& other = CostsOf(costs, action.overlap_stage, rank);
      return (own.overlap >= 0 ? own.overlap : own.F + other.B) + again(action.overlap_stage);
    }
  }
}

namespace {

constexpr int kUnset = -1;     // there is no such message
constexpr int kExpected = -2;  // a rank will wait for it

// An event of a step that ranks wait for: a message's arrival or a posted RECV.
struct Signal {
  double time = 0;
  int rank = kUnset;  // the rank that caused it, or one of the above
  int event = -1;     // the last event of that rank before it
  int waiter = -1;    // head of the list of ranks that wait here
};

// A time, and the event that determined it (-1: none).
struct Moment {
  double time = 0;
  int rank = -1, event = -1;

  void Wait(const Signal& signal) {
    if (signal.time > time) *this = {signal.time, signal.rank, signal.event};
  }
};

bool IsBackward(ActionKind kind) {
  return kind == ActionKind::kSendBackward || kind == ActionKind::kRecvBackward;
}

// Runs every rank as far as its inputs allow, until all are done. The times are sums and maxima, so
// the order in which the ranks run does not matter.
class Run {
 public:
  Run(const Plan& plan, const Costs& costs, const SimulateOptions& options)
      : plan_(plan), costs_(costs), options_(options) {
    stages_ = static_cast<size_t>(plan.stages);
    microbatches_ = static_cast<size_t>(plan.microbatches) * std::max(1, plan.steps);
    transfers_ = HasTransfers(plan);
    FindEdges();
    FindTargets();
    trace_.ranks.resize(plan.ranks.size());
    for (size_t r = 0; r < plan.ranks.size(); ++r) {
      size_t compute = 0;
      for (const Action& a : plan.ranks[r]) compute += IsCompute(a.kind);
      trace_.ranks[r].reserve(compute * static_cast<size_t>(options.steps));
    }
    clock_.resize(plan.ranks.size());
    next_waiter_.assign(plan.ranks.size(), -1);
    links_.resize(plan.ranks.size());
    trace_.loads.resize(plan.ranks.size());
    reader_free_.assign(plan.ranks.size(), 0);
  }

  void Step(int step) {
    step_ = step;
    position_.assign(plan_.ranks.size(), 0);
    forward_on_.assign(stages_ * microbatches_, -1);
    backward_on_.assign(stages_ * microbatches_, -1);
    messages_.assign(target_.size(), {});
    for (size_t i = 0; i < target_.size(); ++i)
      if (target_[i] >= 0) messages_[i].rank = kExpected;
    posted_.assign(options_.synchronous ? target_.size() : 0, {});
    for (size_t r = plan_.ranks.size(); r-- > 0;) ready_.push_back(static_cast<int>(r));
    while (!ready_.empty()) {
      int rank = ready_.back();
      ready_.pop_back();
      Advance(rank);
    }
    for (size_t r = 0; r < plan_.ranks.size(); ++r)
      if (position_[r] < plan_.ranks[r].size()) Stuck();
    if (!options_.barrier || clock_.empty()) return;
    Moment last = clock_[0];
    for (const Moment& clock : clock_)
      if (clock.time > last.time) last = clock;
    std::fill(clock_.begin(), clock_.end(), last);
  }

  ActionTrace Take() {
    for (auto& links : links_) {
      std::sort(links.begin(), links.end(),
                [](const LinkTraffic& a, const LinkTraffic& b) { return a.to < b.to; });
      trace_.links.insert(trace_.links.end(), links.begin(), links.end());
    }
    return std::move(trace_);
  }

 private:
  const Plan& plan_;
  const Costs& costs_;
  const SimulateOptions& options_;
  size_t stages_ = 0, microbatches_ = 0, edges_ = 0;
  bool transfers_ = false;
  int step_ = 0;
  ActionTrace trace_;
  // The edges of both directions: [backward][stage] = (peer stage, edge).
  std::vector<std::vector<std::pair<int, int>>> into_[2], out_[2];
  // By edge and microbatch: the receiver (-1: there is no such message), arrival, post.
  std::vector<int> target_;
  std::vector<Signal> messages_, posted_;
  std::vector<int> forward_on_, backward_on_;  // by (stage, microbatch): the rank that ran it
  std::map<std::pair<int, int>, double> link_free_;
  std::map<std::pair<int, int>, Moment> loaded_;  // (rank, stage): when its weights are in memory
  std::vector<double> reader_free_;               // [rank]
  std::vector<std::vector<LinkTraffic>> links_;   // by sender; a rank has few links
  std::vector<Moment> clock_;
  std::vector<size_t> position_;
  std::vector<int> next_waiter_, ready_;

  size_t At(int row, int microbatch) const {
    return static_cast<size_t>(row) * microbatches_ + static_cast<size_t>(microbatch);
  }

  [[noreturn]] void Fail(int rank, const std::string& what) const {
    throw Error(PlaceText(rank, position_[rank], plan_.ranks[rank][position_[rank]]), what);
  }

  int EdgeOf(int from, int to, bool backward, bool add = false) {
    auto& list = into_[backward][to];
    for (auto [peer, edge] : list)
      if (peer == from) return edge;
    if (!add) return -1;
    list.emplace_back(from, static_cast<int>(edges_));
    out_[backward][from].emplace_back(to, static_cast<int>(edges_));
    return static_cast<int>(edges_++);
  }

  int EdgeOf(const Action& transfer, bool add = false) {
    int to = IsSend(transfer.kind) ? PeerOf(transfer) : transfer.stage;
    int from = IsSend(transfer.kind) ? transfer.stage : PeerOf(transfer);
    return EdgeOf(from, to, IsBackward(transfer.kind), add);
  }

  void FindEdges() {
    for (auto* edges : {&into_[0], &into_[1], &out_[0], &out_[1]}) edges->resize(stages_);
    if (options_.graph && !transfers_) {
      for (const StageEdge& e : options_.graph->edges) {
        EdgeOf(e.from, e.to, false, true);
        if (e.gradient) EdgeOf(e.to, e.from, true, true);
      }
      return;
    }
    for (int s = 0; !transfers_ && s + 1 < plan_.stages; ++s) {
      EdgeOf(s, s + 1, false, true);
      EdgeOf(s + 1, s, true, true);
    }
    for (const auto& actions : plan_.ranks)
      for (const Action& a : actions)
        if (IsTransfer(a.kind)) EdgeOf(a, true);
  }

  void FindTargets() {
    target_.assign(edges_ * microbatches_, -1);
    for (size_t r = 0; r < plan_.ranks.size(); ++r)
      for (const Action& a : plan_.ranks[r]) {
        int rank = static_cast<int>(r);
        if (IsRecv(a.kind)) target_[At(EdgeOf(a), a.microbatch)] = rank;
        if (transfers_ || !IsCompute(a.kind)) continue;
        if (HasForward(a))
          for (auto [peer, edge] : into_[0][a.stage]) target_[At(edge, a.microbatch)] = rank;
        if (HasBackward(a))
          for (auto [peer, edge] : into_[1][BackwardStage(a)])
            target_[At(edge, BackwardMicrobatch(a))] = rank;
      }
  }

  // Stops `rank` at `signal` unless it has happened.
  bool Await(Signal& signal, int rank) {
    if (signal.rank >= 0) return true;
    next_waiter_[rank] = signal.waiter;
    signal.waiter = rank;
    return false;
  }

  void Give(Signal& signal, const Moment& at) {
    int waiter = signal.waiter;
    signal = {at.time, at.rank, at.event, -1};
    for (; waiter >= 0; waiter = next_waiter_[waiter]) ready_.push_back(waiter);
  }

  // Returns the last event of a rank, as the cause of what starts now.
  Moment Now(int rank) const {
    Moment now = clock_[rank];
    now.rank = rank;
    now.event = static_cast<int>(trace_.ranks[rank].size()) - 1;
    return now;
  }

  // Waits for the messages into `stage` in one direction. Returns false if the rank must stop.
  bool Inputs(int stage, int microbatch, bool backward, int rank, Moment& start) {
    for (auto [peer, edge] : into_[backward][stage]) {
      Signal& message = messages_[At(edge, microbatch)];
      if (message.rank == kUnset) continue;  // handed over within the rank
      if (!Await(message, rank)) return false;
      start.Wait(message);
    }
    return true;
  }

  void Count(int from, int to, double bytes) {
    auto& links = links_[from];
    auto link = std::find_if(links.begin(), links.end(),
                             [&](const LinkTraffic& one) { return one.to == to; });
    if (link == links.end()) link = links.insert(link, {from, to, 0, 0});
    ++link->messages;
    link->bytes += bytes;
  }

  void Transfer(int from_stage, int to_stage, int edge, int microbatch, bool backward, int rank) {
    size_t message = At(edge, microbatch);
    Moment sent = Now(rank);
    int to = target_[message];
    if (to != rank) {
      double bytes = backward ? EdgeCostsOf(costs_, to_stage, from_stage, rank).back
                              : EdgeCostsOf(costs_, from_stage, to_stage, rank).bytes;
      double leave = sent.time;
      if (options_.contention && bytes > 0) {
        double& free = link_free_[{rank, to}];
        leave = std::max(free, sent.time);
        free = leave + bytes / LinkOf(costs_, rank, to).bandwidth;
      }
      double arrive = leave + TransferTime(costs_, rank, to, bytes);
      Count(rank, to, bytes);
      sent.time = arrive;
    }
    Give(messages_[message], sent);
  }

  // If the plan has no transfers, a result leaves as soon as it is computed.
  void Deliver(int stage, int microbatch, bool backward, int rank) {
    if (transfers_) return;
    for (auto [to, edge] : out_[backward][stage])
      if (target_[At(edge, microbatch)] >= 0)
        Transfer(stage, to, edge, microbatch, backward, rank);
  }

  bool Compute(const Action& a, int rank) {
    auto& events = trace_.ranks[rank];
    Moment start = clock_[rank];
    int stage = BackwardStage(a), microbatch = BackwardMicrobatch(a);
    if (HasForward(a)) {
      if (forward_on_[At(a.stage, a.microbatch)] >= 0) Fail(rank, "this forward appears twice");
      if (!Inputs(a.stage, a.microbatch, false, rank, start)) return false;
    }
    if (HasBackward(a)) {
      if (forward_on_[At(stage, microbatch)] != rank)
        Fail(rank, "comes before the forward of its stage and microbatch");
      if (backward_on_[At(stage, microbatch)] >= 0) Fail(rank, "this backward appears twice");
      if (!Inputs(stage, microbatch, true, rank, start)) return false;
    }
    if (a.kind == ActionKind::kWeightGrad && backward_on_[At(a.stage, a.microbatch)] != rank)
      Fail(rank, "comes before the I of its stage and microbatch");
    if (!loaded_.empty()) {
      AwaitLoad(a.stage, rank, start);
      if (HasBackward(a)) AwaitLoad(stage, rank, start);
    }
    double end = start.time + (options_.duration ? options_.duration(rank, step_, a)
                                                 : Duration(a, rank, costs_, options_.recompute));
    int position = static_cast<int>(position_[rank]);
    events.push_back({position, step_, start.time, end, start.rank, start.event});
    clock_[rank] = {end, rank, static_cast<int>(events.size()) - 1};
    if (HasForward(a)) {
      forward_on_[At(a.stage, a.microbatch)] = rank;
      Deliver(a.stage, a.microbatch, false, rank);
    }
    if (HasBackward(a)) {
      backward_on_[At(stage, microbatch)] = rank;
      Deliver(stage, microbatch, true, rank);
    }
    return true;
  }

  // Adds an event for the STEP if it takes time; the rank's next actions wait for that event.
  void TakeStep(const Action& a, int rank) {
    const double time = options_.duration ? options_.duration(rank, step_, a)
                                          : CostsOf(costs_, a.stage, rank).step;
    if (time == 0) return;
    auto& events = trace_.ranks[rank];
    const Moment start = clock_[rank];
    const int position = static_cast<int>(position_[rank]);
    events.push_back({position, step_, start.time, start.time + time, start.rank, start.event});
    clock_[rank] = {start.time + time, rank, static_cast<int>(events.size()) - 1};
  }

  // A rank's loads run one after the other, concurrently with its computes.
  void Load(const Action& a, int rank) {
    Moment at = Now(rank);
    double bytes = CostsOf(costs_, a.stage, rank).weights;
    double start = std::max(at.time, reader_free_[rank]);
    double end = start + costs_.disk.latency + (bytes > 0 ? bytes / costs_.disk.bandwidth : 0);
    reader_free_[rank] = end;
    if (end > start)
      trace_.loads[rank].push_back(
          {static_cast<int>(position_[rank]), step_, start, end, at.rank, at.event});
    at.time = end;
    loaded_[{rank, a.stage}] = at;
  }

  void AwaitLoad(int stage, int rank, Moment& start) const {
    auto load = loaded_.find({rank, stage});
    if (load != loaded_.end() && load->second.time > start.time) start = load->second;
  }

  bool Send(const Action& a, int rank) {
    int edge = EdgeOf(a);
    size_t message = At(edge, a.microbatch);
    if (messages_[message].rank == kUnset) Fail(rank, "no rank receives this");
    if (messages_[message].rank >= 0) Fail(rank, "this is sent twice");
    if (options_.synchronous) {
      if (!Await(posted_[message], rank)) return false;
      clock_[rank].Wait(posted_[message]);
    }
    Transfer(a.stage, PeerOf(a), edge, a.microbatch, IsBackward(a.kind), rank);
    return true;
  }

  void Advance(int rank) {
    const auto& actions = plan_.ranks[rank];
    for (size_t& i = position_[rank]; i < actions.size(); ++i) {
      const Action& a = actions[i];
      if (IsCompute(a.kind)) {
        if (!Compute(a, rank)) return;
      } else if (IsSend(a.kind)) {
        if (!Send(a, rank)) return;
      } else if (a.kind == ActionKind::kStep) {
        TakeStep(a, rank);
      } else if (a.kind == ActionKind::kLoad) {
        Load(a, rank);
      } else if (IsRecv(a.kind) && options_.synchronous) {
        Give(posted_[At(EdgeOf(a), a.microbatch)], Now(rank));
      }
    }
  }

  // Returns the action that `a` waits for: the SEND (without transfers, the compute) or, for a
  // SEND, the RECV. Empty if it waits for nothing.
  std::string Awaited(const Action& a) {
    auto find = [&](auto wanted) {
      for (size_t r = 0; r < plan_.ranks.size(); ++r)
        for (size_t p = 0; p < plan_.ranks[r].size(); ++p)
          if (wanted(plan_.ranks[r][p]))
            return PlaceText(static_cast<int>(r), p, plan_.ranks[r][p]);
      return std::string("what nobody sends");
    };
    if (IsTransfer(a.kind))
      return find([&](const Action& b) {
        return IsRecv(b.kind) && EdgeOf(b) == EdgeOf(a) && b.microbatch == a.microbatch;
      });
    for (bool backward : {false, true}) {
      if (!(backward ? HasBackward(a) : HasForward(a))) continue;
      int stage = backward ? BackwardStage(a) : a.stage;
      int microbatch = backward ? BackwardMicrobatch(a) : a.microbatch;
      for (auto [from, edge] : into_[backward][stage]) {
        if (messages_[At(edge, microbatch)].rank != kExpected) continue;
        return find([&, from = from, edge = edge](const Action& b) {
          if (transfers_)
            return IsSend(b.kind) && EdgeOf(b) == edge && b.microbatch == microbatch;
          if (backward)
            return HasBackward(b) && BackwardStage(b) == from &&
                   BackwardMicrobatch(b) == microbatch;
          return HasForward(b) && b.stage == from && b.microbatch == microbatch;
        });
      }
    }
    return "";
  }

  [[noreturn]] void Stuck() {
    constexpr int kShown = 4;
    std::string what;
    int first = -1, count = 0;
    for (size_t r = 0; r < plan_.ranks.size(); ++r) {
      size_t i = position_[r];
      if (i >= plan_.ranks[r].size()) continue;
      if (first < 0) first = static_cast<int>(r);
      if (count++ < kShown)
        what += (what.empty() ? "" : "; ") + PlaceText(static_cast<int>(r), i, plan_.ranks[r][i]) +
                " waits for " + Awaited(plan_.ranks[r][i]);
    }
    Fail(first, "rule \"deadlock\": the order can never finish: " + what);
  }
};

}  // namespace

ActionTrace Simulate(const Plan& plan, const Costs& costs, const SimulateOptions& given) {
  CheckStages(costs, plan.stages);
  SimulateOptions options = given;
  if (options.recompute.empty()) options.recompute = RecomputeOf(plan);
  for (int s = 0; s < static_cast<int>(options.recompute.size()); ++s)
    if (options.recompute[s] && costs.stages[costs.stages.size() == 1 ? 0 : s].recompute < 0)
      throw Error("stage " + std::to_string(s),
                  "it recomputes, and its costs do not say for how much",
                  "give \"recompute\": {\"time\": F, \"activation\": 0} in the costs");
  if (options.steps < 1) throw Error("steps", "must be at least 1");
  if (options.synchronous && plan.ranks.size() > 1 && !HasTransfers(plan))
    throw Error("synchronous sends", "the plan has no transfers",
                "write it without --compute-only");
  Run run(plan, costs, options);
  for (int step = 0; step < options.steps; ++step) run.Step(step);
  return run.Take();
}

}  // namespace pipewright
