// Sends values between devices over NCCL, and everything else over another transport.
#pragma once
#include <c10/core/Device.h>

#include <memory>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "runtime/exec/transport.h"

namespace pipewright {

// Pairs of ranks (sender, receiver) that exchange values over NCCL.
using NcclPairs = std::set<std::pair<int, int>>;

// Each pair has a communicator and, on each side, a stream of its own: NCCL has no tags, and runs
// the transfers of a communicator one after the other. Every plan that Validate allows can run like
// this (plan/lowering/in_order.h). The regions of a bundle that lie in host memory travel by the
// inner transport; the sender's host does not wait for its device.
class NcclTransport : public Transport {
 public:
  // Creates the communicators of this rank and uses each once, because NCCL may block the host in
  // the first use. Collective over all ranks of `inner`, which must outlive this transport; `pairs`
  // must be the same on all. `device` is this rank's, and the current one of this thread.
  NcclTransport(Transport& inner, c10::Device device, const NcclPairs& pairs);
  // Waits for the transfers, unless it runs because of an exception.
  ~NcclTransport() override;

  int rank() const override;
  int size() const override;
  int max_tag() const override;
  std::shared_ptr<void> Memory(size_t bytes) override;
  bool TakesDevices(int peer) const override;
  Token Send(int peer, int tag, Bundle bundle) override;
  Token Recv(int peer, int tag, Bundle bundle) override;
  bool Test(const Token& token) override;
  void BeginCompute() override;
  void Progress() override;
  bool NeedsProgress() const override;
  size_t Pending() override;
  void BeginAction(int64_t step, int entry) override;
  std::vector<std::string> AllGather(const std::string& bytes) override;
  [[noreturn]] void Abort(const std::string& message, int exit_code) override;

 private:
  void Wait(const Token& token) override;

  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace pipewright
