// Accumulates the gradients of one rank's weights over a step: over microbatches, then, for those
// shared between ranks, over ranks.
#pragma once
#include <ATen/core/Tensor.h>
#include <c10/core/Stream.h>

#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <tuple>
#include <utility>
#include <vector>

#include "runtime/module/messages.h"
#include "runtime/stage/gradient_groups.h"

namespace pipewright {

class GradientSums {
 public:
  GradientSums(const Manifest& manifest, const Conf& conf, int rank, at::Device device,
               const GradientOptions& options);

  // Registers a module of this rank and its weights.
  void Hold(int module, const Tensors& weights);

  // Adds one microbatch's gradients of a module's weights, undefined if no loss depends on the
  // weight. Must be called once for each microbatch of this rank and step.
  void Add(int module, int microbatch, Tensors found);

  // Makes groups exchange gradients on devices if their ranks are among these, and others in host
  // memory. Between steps only.
  void ExchangeOnDevices(const DevicePeers& peers);

  // Returns a module's sums at its step, undefined if nothing was added, and begins the next step.
  Tensors Take(int module);

  // These implement the StageBody functions of the same names.
  const std::vector<SharedGroup>& exchanges() const { return groups_.exchanges; }
  void OnReady(std::function<void(int group)> ready) { ready_ = std::move(ready); }
  Bundle Gradient(int group, int holder);
  // Returns true if Gradient will copy the gradient to the host, and so wait for the device.
  bool Copies(int group, int holder) const;
  Bundle Scratch(int group, const MemorySource& memory) const;
  // Adds `from` to `into`; undefined parts add nothing.
  static void AddTo(const Bundle& into, const Bundle& from);
  static void CopyTo(const Bundle& into, const Bundle& from);
  bool AllReduces(int group) const { return all_reduces_[static_cast<size_t>(group)]; }
  std::shared_ptr<void> Exchanging(bool begins);
  void EndExchanges();

 private:
  struct Held {
    Tensors weights, sums;
    bool replicated = false;
    int own = 0;                            // microbatches of a minibatch that run on this rank
    int arrived = 0;                        // in the step so far
    int next = 0;                           // exact: next microbatch to add
    std::map<int, Tensors> waiting;         // exact, by microbatch: early ones; all if replicated
    std::vector<int> groups;                // groups that it contributes to
    std::vector<std::pair<int, int>> gets;  // (group, holder) whose sum this rank receives
  };
  at::ScalarType TypeOf(at::ScalarType weight) const;
  void AddNow(const Held& held, Tensors& sums, Tensors& found) const;
  void Announce(const Held& held);

  const bool exact_, wide_;
  const int microbatches_, minibatches_, rank_;
  const Manifest& manifest_;
  const Conf& conf_;
  const at::Device device_;
  const GradientGroups groups_;
  std::vector<bool> on_device_;           // by group: it is exchanged on devices
  std::vector<bool> all_reduces_;         // by group: the transport adds it there
  std::optional<c10::Stream> stream_;     // of exchanges; none on the CPU
  std::optional<c10::Stream> computing_;  // that of all else, once an exchange has begun
  std::map<int, Held> modules_;
  // Flags for which parts of a holder's contribution, or of the sum that it gets, are defined.
  std::map<std::pair<int, int>, at::Tensor> flags_;
  // Copies in host memory of contributions that lie on a device, for the exchange.
  std::map<std::pair<int, int>, Tensors> on_host_;
  // Zero gradients created for an exchange, because nothing was added: (module, microbatch,
  // weight).
  std::set<std::tuple<int, int, size_t>> filled_;
  std::function<void(int)> ready_;
};

}  // namespace pipewright
