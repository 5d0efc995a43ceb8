// The one account of memory: what an action takes when it starts and gives back when it ends.
#pragma once
#include <algorithm>
#include <cstddef>
#include <vector>

#include "plan/actions.h"

namespace pipewright {

// What one microbatch holds in a stage: from the start of F to I (or B), while I (or B) runs, and
// from the end of I to the end of W. In bytes, or in anything else that is counted.
struct StageMemory {
  double stored = 0, whole = 0, kept = 0;
};

// The change as an action starts, and the further change as it ends.
struct MemoryChange {
  double during = 0, after = 0;
};

// Forward only, nobody comes back for what an F leaves.
inline MemoryChange ForwardMemory(const StageMemory& m, bool forward_only) {
  return {m.stored, forward_only ? -m.stored : 0};
}
inline MemoryChange InputGradMemory(const StageMemory& m) {
  return {m.whole - m.stored, m.kept - m.whole};
}
inline MemoryChange BackwardMemory(const StageMemory& m) { return {m.whole - m.stored, -m.whole}; }
inline MemoryChange WeightGradMemory(const StageMemory& m) { return {0, -m.kept}; }

// What a rank holds, action by action, and the most so far.
class RankMemory {
 public:
  RankMemory(double held, bool forward_only)
      : bytes_(held), peak_(held), forward_only_(forward_only) {}

  // `of(stage)` is the StageMemory of the rank's stage; a pair (OVERLAP) is an F, then a B.
  template <typename Of>
  void Do(const Action& a, Of of) {
    if (HasForward(a)) Add(ForwardMemory(of(a.stage), forward_only_));
    if (a.kind == ActionKind::kInputGrad)
      Add(InputGradMemory(of(a.stage)));
    else if (HasBackward(a))
      Add(BackwardMemory(of(BackwardStage(a))));
    if (a.kind == ActionKind::kWeightGrad) Add(WeightGradMemory(of(a.stage)));
  }
  // LOAD brings the weights of a stage, EVICT gives them back.
  template <typename Weights>
  void Load(const Action& a, Weights weights) {
    if (a.kind == ActionKind::kLoad) Add({weights(a.stage), 0});
    if (a.kind == ActionKind::kEvict) Add({0, -weights(a.stage)});
  }

  double peak() const { return peak_; }

 private:
  double bytes_, peak_;
  bool forward_only_;

  void Add(const MemoryChange& change) {
    peak_ = std::max(peak_, bytes_ += change.during);
    peak_ = std::max(peak_, bytes_ += change.after);
  }
};

}  // namespace pipewright
