// DualPipe (DeepSeek-V3, 2412.19437, section 3.2.1) and DualPipeV, its half with a V placement
// (deepseek-ai/DualPipe; torch.distributed.pipelining, ScheduleDualPipeV).
#include "plan/schedules/generators.h"

namespace pipewright {

namespace {

// Builds the order of one rank. `depth` counts from the end of the pipeline inwards, 0 to half - 1.
// Microbatches enter its near stage early and its far stage late; near(i) and far(i) give the i-th
// forward, backward, ... of each.
class DualPipeRank {
 public:
  DualPipeRank(int near, int far, int near_offset, int far_offset, int stride,
               std::vector<Action>& out)
      : near_{near, near_offset, stride}, far_{far, far_offset, stride}, out_(out) {}

  // Runs the eight phases of the paper's table, with `m` microbatches in each direction.
  void Run(int depth, int half, int m) {
    int outer = half - depth - 1;
    for (int k = 0; k < 2 * outer; ++k) Forward(near_);
    for (int k = 0; k < depth + 1; ++k) Forward(near_), Forward(far_);
    for (int k = 0; k < outer; ++k) Input(far_), Weight(far_), Forward(far_);
    for (int k = 0; k < m - 2 * half + depth + 1; ++k) {
      if (k == 0 && depth == half - 1)
        Forward(near_), Backward(far_);
      else
        Pair(near_, far_);
      Pair(far_, near_);
    }
    for (int k = 0; k < outer; ++k) Backward(far_), Pair(far_, near_);
    for (int k = 0; k < depth + 1; ++k) {
      bool split = k >= (depth + 1) / 2;
      // With an odd count, backwards are split from the middle of a round on.
      bool split_far = split && !(k == (depth + 1) / 2 && (depth + 1) % 2);
      split_far ? Input(far_) : Backward(far_);
      split ? Input(near_) : Backward(near_);
    }
    for (int k = 0; k < outer; ++k) NextWeight(), Input(near_);
    while (pending_ < inputs_.size()) NextWeight();
  }

 private:
  struct Side {
    int stage, offset, stride;
    int forward = 0, backward = 0;
    int Microbatch(int i) const { return offset + i * stride; }
  };

  void Forward(Side& s) {
    out_.push_back(Compute(ActionKind::kForward, s.stage, s.Microbatch(s.forward++)));
  }
  void Backward(Side& s) {
    out_.push_back(Compute(ActionKind::kBackward, s.stage, s.Microbatch(s.backward++)));
  }
  void Input(Side& s) {
    int i = s.Microbatch(s.backward++);
    out_.push_back(Compute(ActionKind::kInputGrad, s.stage, i));
    inputs_.push_back(Compute(ActionKind::kWeightGrad, s.stage, i));
  }
  void NextWeight() { out_.push_back(inputs_[pending_++]); }
  void Weight(Side&) { NextWeight(); }
  void Pair(Side& forward, Side& backward) {
    Action a = Compute(ActionKind::kOverlap, forward.stage, forward.Microbatch(forward.forward++));
    a.overlap_stage = backward.stage;
    a.overlap_microbatch = backward.Microbatch(backward.backward++);
    out_.push_back(a);
  }

  Side near_, far_;
  std::vector<Action>& out_;
  std::vector<Action> inputs_;  // the W of every I, in order
  size_t pending_ = 0;
};

}  // namespace

// Even microbatches go down, odd ones up: stage s runs them on ranks s and P - 1 - s respectively.
Plan DualPipe(const ScheduleRequest& q) {
  Plan plan;
  plan.ranks.resize(q.ranks);
  for (int r = 0; r < q.ranks; ++r) {
    int depth = r < q.ranks / 2 ? r : q.ranks - 1 - r, up = r < q.ranks / 2 ? 0 : 1;
    DualPipeRank rank(depth, q.ranks - 1 - depth, up, 1 - up, 2, plan.ranks[r]);
    rank.Run(depth, q.ranks / 2, q.microbatches / 2);
  }
  return plan;
}

Plan DualPipeV(const ScheduleRequest& q) {
  Plan plan;
  plan.ranks.resize(q.ranks);
  for (int r = 0; r < q.ranks; ++r)
    DualPipeRank(r, 2 * q.ranks - 1 - r, 0, 0, 1, plan.ranks[r]).Run(r, q.ranks, q.microbatches);
  return plan;
}

}  // namespace pipewright
