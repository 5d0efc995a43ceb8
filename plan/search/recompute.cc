#include "plan/search/recompute.h"

#include <algorithm>

#include "plan/search/placements.h"
#include "plan/simulate/lower_bound.h"

namespace pipewright {

std::vector<char> RecomputeOffered(const Costs& costs, int stages) {
  std::vector<char> offered(stages, 0);
  bool any = false;
  for (int s = 0; s < stages; ++s)
    any |= offered[s] = costs.stages[costs.stages.size() == 1 ? 0 : s].recompute >= 0;
  return any ? offered : std::vector<char>{};
}

namespace {

using Choice = std::vector<char>;

class Chooser {
 public:
  Chooser(const Costs& costs, int ranks, const StagePlacement& placement, int microbatches,
          double memory, long effort)
      : costs_(costs),
        ranks_(ranks),
        placement_(placement),
        microbatches_(std::min(microbatches, std::max(4, 3 * ranks))),
        memory_(memory),
        left_(effort),
        offered_(RecomputeOffered(costs, static_cast<int>(placement.size()))) {
    for (size_t s = 0; s < offered_.size(); ++s)
      if (offered_[s]) stages_.push_back(static_cast<int>(s));
  }

  std::vector<Choice> All() const {
    std::vector<Choice> choices;
    for (size_t bits = 0; bits < size_t{1} << stages_.size(); ++bits) {
      Choice choice(bits ? offered_.size() : 0, 0);
      for (size_t k = 0; bits && k < stages_.size(); ++k) choice[stages_[k]] = bits >> k & 1;
      choices.push_back(choice);
    }
    return choices;
  }

  std::vector<Choice> Climb(size_t count) {
    Add({});
    Add(offered_);
    // The first stages of a rank hold their activations longest.
    size_t most = 0;
    std::vector<size_t> place(placement_.size()), held(ranks_);
    for (size_t s = 0; s < placement_.size(); ++s)
      for (int r : placement_[s]) most = std::max(most, place[s] = held[r]++);
    for (size_t first = 1; first <= most; ++first) {
      Choice some = offered_;
      for (size_t s = 0; s < some.size(); ++s) some[s] = some[s] && place[s] < first;
      Add(some);
    }
    for (int quarter : {1, 2, 3}) {
      Choice some = offered_;
      for (size_t s = some.size() * quarter / 4; s < some.size(); ++s) some[s] = 0;
      Add(some);
    }
    for (bool moved = !judged_.empty(); moved && left_ > 0;) {
      moved = false;
      for (int s : stages_) {
        if (left_ <= 0) break;
        Choice next = judged_[0].choice;
        if (next.empty()) next.assign(offered_.size(), 0);
        next[s] = !next[s];
        moved |= Add(next);
      }
    }
    std::vector<Choice> choices;
    for (const Judged& one : judged_)
      if (choices.size() < count) choices.push_back(one.choice);
    return choices;
  }

  size_t free_stages() const { return stages_.size(); }

 private:
  struct Judged {
    double span = 0;
    Choice choice;
  };
  const Costs& costs_;
  int ranks_;
  const StagePlacement& placement_;
  int microbatches_;
  double memory_;
  long left_;
  Choice offered_;
  std::vector<int> stages_;
  std::vector<Judged> judged_;  // the best first

  // Returns true if the set is the best so far.
  bool Add(Choice choice) {
    if (std::count(choice.begin(), choice.end(), 0) == static_cast<Place>(choice.size()))
      choice.clear();
    for (const Judged& one : judged_)
      if (one.choice == choice) return false;
    OrderProblem problem =
        MakeOrderProblem(costs_, ranks_, placement_, microbatches_, memory_, choice, false);
    double span = QuickSpan(problem, left_);
    if (span < 0) return false;
    auto at = std::find_if(judged_.begin(), judged_.end(),
                           [&](const Judged& one) { return span < one.span * (1 - 1e-9); });
    bool best = at == judged_.begin();
    judged_.insert(at, {span, choice});
    return best;
  }

  using Place = std::ptrdiff_t;
};

}  // namespace

std::vector<std::vector<char>> RecomputeChoices(const Costs& costs, int ranks,
                                                const StagePlacement& placement, int microbatches,
                                                double memory, long effort, size_t count) {
  int stages = static_cast<int>(placement.size());
  if (memory == kNoLimit || RecomputeOffered(costs, stages).empty()) return {{}};
  Chooser chooser(costs, ranks, placement, microbatches, memory, effort);
  if (chooser.free_stages() <= 4) return chooser.All();
  auto choices = chooser.Climb(count);
  // A set for which no quick order fits may still have an order that does.
  if (choices.empty()) choices = {RecomputeOffered(costs, stages)};
  return choices;
}

}  // namespace pipewright
