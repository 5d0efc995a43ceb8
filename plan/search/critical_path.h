// Maintains the critical paths of an order: each action's earliest start (head), the longest path
// after it (tail), and the positions that it may move to. Times orders as the simulator does, many
// thousands per second.
#pragma once
#include <vector>

#include "plan/schedules/order_problem.h"

namespace pipewright {

// Actions are numbered. The W of a stage are interchangeable: each is for the next microbatch that
// is due.
class CriticalPaths {
 public:
  struct Job {
    OpKind kind = OpKind::kF;
    int stage = 0, microbatch = 0, rank = 0;
    double time = 0;
    int before = -1, behind = -1;  // neighbors on the path of the microbatch
    double lag_before = 0, lag_behind = 0;
    MemoryChange memory;
  };

  CriticalPaths(const OrderProblem& problem, const RankOrders& order);

  // Times the current lists. The result is not `ok` if they deadlock.
  OrderTimes Time();
  // Also computes the tails, which Estimate needs.
  OrderTimes Pass();
  int worst() const { return worst_; }  // the rank of the longest span
  // Returns true if a rank's list stays within the memory limit.
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
  // Return the position nearest to `to` to which the action at `from` may move.
  int Later(int r, int from, int to) const;
  int Earlier(int r, int from, int to) const;
  // Returns the longest path through the moved actions after the move, with other times unchanged.
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
  double TailFrom(int r, int position) const;  // the tail of the actions from `position` on
  double Rest(const Job& job) const;
};

}  // namespace pipewright
