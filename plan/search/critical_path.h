// Keeps the critical paths of an order: when each action starts, what must follow it, and how far
// it may move. Times orders as the simulator does, many thousand a second.
#pragma once
#include <vector>

#include "plan/schedules/order_problem.h"

namespace pipewright {

// Actions have numbers; W of a stage are alike, and stand for whichever microbatch is due.
class CriticalPaths {
 public:
  struct Job {
    OpKind kind = OpKind::kF;
    int stage = 0, microbatch = 0, rank = 0;
    double time = 0;
    int before = -1, behind = -1;  // on the path of the microbatch
    double lag_before = 0, lag_behind = 0;
    MemoryChange memory;
  };

  CriticalPaths(const OrderProblem& problem, const RankOrders& order);

  // Times the present lists; not `ok` where they wait for one another.
  OrderTimes Time();
  // Also finds what must follow each action, for Estimate.
  OrderTimes Pass();
  int worst() const { return worst_; }  // the rank of the longest span
  // Says whether a rank's list keeps to the limit of memory.
  bool Fits(int rank) const;

  const Job& job(int id) const { return jobs_[id]; }
  const std::vector<std::vector<int>>& lists() const { return lists_; }  // [rank]
  void SetLists(const std::vector<std::vector<int>>& lists);
  // Moves the action at `from` of a rank's list to position `to`.
  void Move(int rank, int from, int to);
  RankOrders ToOrder(const std::vector<std::vector<int>>& lists) const;

  // These are as of the last Time or Pass.
  double head(int id) const { return head_[id]; }
  int place(int id) const { return place_[id]; }
  double HeadUpTo(int r, int position) const;
  double Ready(const Job& job) const;
  // Returns how far the action may go, at most to `to`.
  int Later(int r, int from, int to) const;
  int Earlier(int r, int from, int to) const;
  // Returns the longest path through the moved actions after the move, other times unchanged.
  double Estimate(int r, int from, int to);

 private:
  const OrderProblem& p_;
  std::vector<Job> jobs_;
  std::vector<std::vector<int>> lists_;     // [rank]
  std::vector<std::vector<double>> bytes_;  // [rank][position] during it
  std::vector<std::vector<int>> pending_;   // [rank][position] W of its stage ready before it
  std::vector<int> place_;
  std::vector<double> head_, tail_, first_;
  std::vector<int> topological_, ready_, waiter_, next_waiter_;
  std::vector<size_t> at_;
  std::vector<char> done_;
  std::vector<double> heads_;
  int worst_ = 0;

  int Id(OpKind kind, int stage, int microbatch) const {
    return (stage * p_.microbatches + microbatch) * 3 + static_cast<int>(kind);
  }
  void Enter(int stage, int microbatch);
  void Refresh(int rank);
  double TailFrom(int r, int position) const;  // of what stands at `position` and behind
  double Rest(const Job& job) const;
};

}  // namespace pipewright
