// What zb-auto searches over: the order of F, I and W of every rank, timed fast and often.
#pragma once
#include <cstdint>
#include <vector>

#include "plan/costs.h"
#include "plan/schedule.h"

namespace pipewright {

// A chain of stages on ranks, with costs, microbatches and a memory limit.
struct OrderProblem {
  int ranks = 0, stages = 0, microbatches = 0;
  bool forward_only = false;
  Placement placement;                 // stage -> replicas
  std::vector<std::vector<int>> held;  // rank -> its stages, ascending
  // [stage * ranks + rank]; I includes recompute.
  std::vector<double> F, I, W;
  std::vector<double> stored, whole, kept;  // bytes from F to I, during I, from I to W
  std::vector<double> up, down;             // [(stage * ranks + from) * ranks + to]; or one entry
  std::vector<double> room;                 // per rank, without weights
  bool one_rank_each = true;                // no replicas: up and down are [stage]

  int RankOf(int stage, int microbatch) const {
    const std::vector<int>& ranks_of = placement[stage];
    return ranks_of.size() == 1 ? ranks_of[0]
                                : ranks_of[static_cast<size_t>(microbatch) % ranks_of.size()];
  }
  size_t At(int stage, int rank) const { return static_cast<size_t>(stage) * ranks + rank; }
  // Time from the end of `stage` on one rank to its neighbour stage on another, up and back.
  double Up(int stage, int from, int to) const {
    return one_rank_each ? up[stage] : up[(At(stage, from)) * ranks + to];
  }
  double Down(int stage, int from, int to) const {  // from stage + 1 to stage
    return one_rank_each ? down[stage] : down[(At(stage, from)) * ranks + to];
  }
};

OrderProblem MakeProblem(const Costs& costs, int ranks, const Placement& placement,
                         int microbatches, double memory, const std::vector<char>& recompute,
                         bool forward_only);

enum class OpKind : uint8_t { kF, kI, kW };

struct Op {
  OpKind kind = OpKind::kF;
  int stage = 0, microbatch = 0;
  bool operator==(const Op&) const = default;
};

using Order = std::vector<std::vector<Op>>;  // [rank]

struct OrderTimes {
  bool ok = false;  // false: a deadlock, or over the memory limit
  double span = 0, makespan = 0;
  double total = 0;  // sum of the ranks' spans: tells orders of equal span apart
  bool Better(const OrderTimes& than) const;
};

// Times whole orders. Keeps its buffers between calls.
class OrderTimer {
 public:
  explicit OrderTimer(const OrderProblem& problem);

  OrderTimes Time(const Order& order);

  // Of the last order: positions [rank] -> start; what each waited for.
  struct Event {
    double start = 0, end = 0;
    int cause_rank = -1, cause = -1;
  };
  const std::vector<std::vector<Event>>& events() const { return events_; }
  int worst_rank() const { return worst_; }

  // Whether one rank's list keeps to the limit.
  bool Fits(int rank, const std::vector<Op>& list) const;

 private:
  struct Done {
    double end = -1;
    int position = -1;
    int waiter = -1;
  };
  const OrderProblem& problem_;
  std::vector<Done> forward_, backward_;  // [stage * microbatches + microbatch]
  std::vector<std::vector<Event>> events_;
  std::vector<size_t> position_;
  std::vector<int> next_waiter_, ready_;
  int worst_ = 0;
};

// Plays a list of F and I through; W runs where the next of them is not there yet for at least
// `patience` times its own time, where memory asks for it, and at the end. A forward that does not
// fit lets the next I go first. `ok` is false when even that is stuck.
struct PlayResult {
  OrderTimes times;
  Order order;
};
PlayResult Play(const OrderProblem& problem, const Order& script, double patience);

}  // namespace pipewright
