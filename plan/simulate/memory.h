// Accounts for the memory that an action takes when it starts and frees when it ends. All searches
// and the simulator use this.
#pragma once
#include <algorithm>
#include <cstddef>
#include <vector>

#include "plan/actions.h"
#include "plan/simulate/costs.h"

namespace pipewright {

// Memory that a stage holds for one microbatch: `stored` from the start of F to I (or B), `whole`
// while I runs, `kept` from the end of I to the end of W. In bytes or any other unit.
struct StageMemory {
  double stored = 0, whole = 0, kept = 0;
  // Peaks while F, B and W run, and while the first B and W of a step run.
  double forward = stored, backward = std::max(stored, whole), weight = kept;
  double first_backward = backward, first_weight = weight;
  double forward_only = forward;  // peak while an F runs that keeps nothing for a backward
};

// Returns the memory of a stage. `recompute`: it recomputes its forward, if its costs allow that.
inline StageMemory StageMemoryOf(const StageCosts& c, bool recompute) {
  const bool again = recompute && c.recompute >= 0;
  const PeakBytes none, &more = again ? c.recompute_peak : none;
  StageMemory m;
  m.stored = again ? c.checkpoint : c.activation;
  m.kept = c.kept_for_W;
  m.whole = std::max({m.stored, c.activation, m.kept, c.peak.I, more.I});
  m.forward = std::max(m.stored, c.peak.F);
  m.backward = std::max({m.stored, c.activation, c.peak.B, more.B});
  m.first_backward = std::max({m.stored, c.activation, c.peak.first_B, more.first_B});
  m.weight = std::max(m.kept, c.peak.W);
  m.first_weight = std::max(m.kept, c.peak.first_W);
  m.forward_only = c.peak.forward_only > 0 ? c.peak.forward_only : m.forward;
  return m;
}
// Returns the most that F, W or the stage's STEP take while they run, beyond `stored`, `kept` and
// the gradient sums. A rank runs one action at a time, so room for the largest is enough.
inline double Moment(const StageCosts& c, const StageMemory& m) {
  return std::max({m.forward - m.stored, m.weight - m.kept, m.first_weight - c.gradients - m.kept,
                   c.peak.step});
}

// The change when an action starts, and the further change when it ends.
struct MemoryChange {
  double during = 0, after = 0;
};

// In forward-only plans an F frees its own memory, because no backward follows.
inline MemoryChange ForwardMemory(const StageMemory& m, bool forward_only) {
  return {m.stored, forward_only ? -m.stored : 0};
}
inline MemoryChange InputGradMemory(const StageMemory& m) {
  return {m.whole - m.stored, m.kept - m.whole};
}
inline MemoryChange BackwardMemory(const StageMemory& m) { return {0, -m.stored}; }
inline MemoryChange WeightGradMemory(const StageMemory& m) { return {0, -m.kept}; }

// Tracks what a rank holds, action by action, and the most so far.
class RankMemory {
 public:
  RankMemory(double held, bool forward_only)
      : bytes_(held), peak_(held), forward_only_(forward_only) {}

  // `of(stage)` is the StageMemory of the rank's stage; a pair (OVERLAP) is an F, then a B.
  // `first`: the action makes the sums of gradients.
  template <typename Of>
  void Do(const Action& a, Of of, bool first = false) {
    if (HasForward(a)) {
      const StageMemory m = of(a.stage);
      Reach(forward_only_ ? m.forward_only : m.forward);
      if (!forward_only_) Add({m.stored, 0});
    }
    if (a.kind == ActionKind::kInputGrad) {
      Add(InputGradMemory(of(a.stage)));
    } else if (HasBackward(a)) {
      const StageMemory m = of(BackwardStage(a));
      Reach((first ? m.first_backward : m.backward) - m.stored);
      Add(BackwardMemory(m));
    }
    if (a.kind == ActionKind::kWeightGrad) {
      const StageMemory m = of(a.stage);
      Reach((first ? m.first_weight : m.weight) - m.kept);
      Add(WeightGradMemory(m));
    }
  }
  // LOAD brings the weights of a stage into memory, EVICT frees them.
  template <typename Weights>
  void Load(const Action& a, Weights weights) {
    if (a.kind == ActionKind::kLoad) Add({weights(a.stage), 0});
    if (a.kind == ActionKind::kEvict) Add({0, -weights(a.stage)});
  }

  // Takes (or gives back) memory that no stage accounts for.
  void Hold(double bytes) { Add({bytes, 0}); }
  // Records that this much more than what is held was needed for a moment.
  void Reach(double more) { peak_ = std::max(peak_, bytes_ + more); }

  double bytes() const { return bytes_; }
  double peak() const { return peak_; }
  // Restarts peak(): from now on it returns the most since this call.
  void StartPeak() { peak_ = bytes_; }

 private:
  double bytes_, peak_;
  bool forward_only_;

  void Add(const MemoryChange& change) {
    peak_ = std::max(peak_, bytes_ += change.during);
    peak_ = std::max(peak_, bytes_ += change.after);
  }
};

}  // namespace pipewright
