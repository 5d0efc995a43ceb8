// The gradients of one rank's weights over a step: summed over microbatches, then, for those that
// ranks share, over ranks.
#pragma once
#include <functional>
#include <map>
#include <set>
#include <tuple>
#include <utility>
#include <vector>

#include "runtime/gradient_groups.h"
#include "runtime/messages.h"

namespace pipewright {

class GradientSums {
 public:
  // `exact`: gradients are added in the order of the microbatches; what comes early waits.
  // `wide`: gradients of 16-bit weights are added in 32. A step has `minibatches` times
  // `microbatches`.
  GradientSums(const Manifest& manifest, const Conf& conf, int rank, int microbatches,
               int minibatches, bool exact, bool wide, int64_t bucket_bytes = int64_t{4} << 20);

  // A module of this rank, and its weights.
  void Hold(int module, const Tensors& weights);

  // What one microbatch gives to a module's weights; undefined where no loss reaches. Once for each
  // microbatch of this rank and step.
  void Add(int module, int microbatch, Tensors found);

  // A module's sums at its step; undefined where nothing was given. Begins the next step.
  Tensors Take(int module);

  // As StageBody says.
  const std::vector<SharedGroup>& exchanges() const { return groups_.exchanges; }
  void OnReady(std::function<void(int group)> ready) { ready_ = std::move(ready); }
  Bundle Gradient(int group, int holder);
  Bundle Scratch(int group, const MemorySource& memory) const;
  // A part that is not defined adds nothing.
  static void AddTo(const Bundle& into, const Bundle& from);
  static void CopyTo(const Bundle& into, const Bundle& from);

 private:
  struct Held {
    Tensors weights, sums;
    bool replicated = false;
    int own = 0;                            // microbatches of a minibatch that run here
    int arrived = 0;                        // in the step so far
    int next = 0;                           // exact: the next microbatch to add
    std::map<int, Tensors> waiting;         // exact, by microbatch: early ones; of replicas, all
    std::vector<int> groups;                // that it gives something to
    std::vector<std::pair<int, int>> gets;  // (group, holder) whose sum comes here
  };
  at::ScalarType TypeOf(at::ScalarType weight) const;
  void AddNow(const Held& held, Tensors& sums, Tensors& found) const;
  void Announce(const Held& held);

  const bool exact_, wide_;
  const int microbatches_, minibatches_, rank_;
  const Manifest& manifest_;
  const Conf& conf_;
  const GradientGroups groups_;
  std::map<int, Held> modules_;
  // Which parts of what a holder gives, or of the sum that it gets, are defined.
  std::map<std::pair<int, int>, at::Tensor> flags_;
  // Gradients that nothing was given to, made for an exchange: (module, microbatch, weight).
  std::set<std::tuple<int, int, size_t>> filled_;
  std::function<void(int)> ready_;
};

}  // namespace pipewright
