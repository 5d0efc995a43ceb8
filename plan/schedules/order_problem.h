// Defines the scheduling problem that an order of F, I and W solves: a chain of stages on ranks,
// their costs and memory limits.
#pragma once
#include <cstdint>
#include <vector>

#include "plan/schedules/schedule.h"
#include "plan/simulate/costs.h"
#include "plan/simulate/memory.h"

namespace pipewright {

enum class OpKind : uint8_t { kF, kI, kW };

struct Op {
  OpKind kind = OpKind::kF;
  int stage = 0, microbatch = 0;
  bool operator==(const Op&) const = default;
};

using RankOrders = std::vector<std::vector<Op>>;  // [rank]

// One microbatch in one stage on one rank.
struct OpCosts {
  double F = 0, I = 0, W = 0;  // times; I includes recompute
  StageMemory memory;

  double Time(OpKind kind) const { return kind == OpKind::kF ? F : kind == OpKind::kI ? I : W; }
  MemoryChange Memory(OpKind kind, bool forward_only) const {
    return kind == OpKind::kF   ? ForwardMemory(memory, forward_only)
           : kind == OpKind::kI ? InputGradMemory(memory)
                                : WeightGradMemory(memory);
  }
};

struct OrderProblem {
  int ranks = 0, stages = 0, microbatches = 0;
  bool forward_only = false;
  StagePlacement placement;                 // stage -> replicas
  std::vector<std::vector<int>> held;  // by rank: its stages, ascending
  std::vector<OpCosts> costs;          // by stage, then replica
  std::vector<size_t> first;           // [stage] the first of its `costs`
  // Transfer time between a stage and the next or previous one, for each pair of their replicas.
  std::vector<double> up, down;
  std::vector<size_t> links;  // [stage] the first of its pairs with the next stage
  std::vector<double> room;   // [rank] memory limit minus the weights
  bool one_rank_each = true;  // no replicas: costs, up and down are [stage]

  size_t At(int stage, int microbatch) const {  // in a table of all microbatches
    return static_cast<size_t>(stage) * microbatches + microbatch;
  }
  int RankOf(int stage, int microbatch) const {
    return placement[stage][Replica(stage, microbatch)];
  }
  const OpCosts& Of(int stage, int microbatch) const {
    return one_rank_each ? costs[stage] : costs[first[stage] + Replica(stage, microbatch)];
  }
  const OpCosts& On(int stage, int rank) const;
  // Returns the most that a rank may hold, with an allowance for rounding.
  double Limit(int rank) const { return room[rank] * (1 + 1e-12) + 1e-9; }
  double Up(int stage, int microbatch) const { return up[Link(stage, microbatch)]; }
  double Down(int stage, int microbatch) const {  // from stage + 1 to stage
    return down[Link(stage, microbatch)];
  }

 private:
  size_t Replica(int stage, int microbatch) const {
    size_t replicas = placement[stage].size();
    return replicas == 1 ? 0 : static_cast<size_t>(microbatch) % replicas;
  }
  size_t Link(int stage, int microbatch) const {
    if (one_rank_each) return stage;
    return links[stage] + Replica(stage, microbatch) * placement[stage + 1].size() +
           Replica(stage + 1, microbatch);
  }
};

OrderProblem MakeOrderProblem(const Costs& costs, int ranks, const StagePlacement& placement,
                              int microbatches, double memory, const std::vector<char>& recompute,
                              bool forward_only);

struct OrderTimes {
  bool ok = false;  // false: a deadlock, or over the memory limit
  double span = 0, makespan = 0;
  double total = 0;  // sum of the ranks' spans; breaks ties between orders of equal span
  bool Better(const OrderTimes& than) const;
  // Adds a rank that works from `start` to `end`.
  void Add(double start, double end);
};

struct TimedOrder {
  OrderTimes times;
  RankOrders order;
};

}  // namespace pipewright
