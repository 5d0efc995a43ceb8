// Sends values between devices over NCCL, and everything else over another transport.
#pragma once
#include <c10/core/Device.h>

#include <memory>
#include <string>
#include <vector>

#include "runtime/exec/transport.h"

namespace pipewright {

// Each pair (sender, receiver), and each list of ranks that add values (AllReduce), has a
// communicator and, on each of its ranks, a stream of its own.
//
// NCCL has no tags: the k-th send of a pair goes to the k-th receive, whatever they are. So the
// sender launches a transfer when the receiver has posted its receive, which it knows from the part
// of the message that travels over the inner transport (its sends are synchronous), and announces
// it there by its tag; the receiver launches its receives in the order in which they are announced.
// So any plan can run that can run over the inner transport. And since a receive is launched after
// its send, what computations on a device wait for is on its way: a host that waits for its device,
// because the model reads a value, does not keep the device from getting there.
//
// The first rank of a sum does the same as a sender: it launches the sum when all others have
// posted it, and announces it to them. A wait for a sum ends when all ranks have launched it.
//
// The sender's host does not wait for its device.
class NcclTransport : public WrappedTransport {
 public:
  // Creates the communicators of this rank and uses each once, because NCCL may block the host in
  // the first use. Collective over all ranks of `inner`; `peers` must be the same on all. `device`
  // is this rank's, and the current one of this thread.
  NcclTransport(Transport& inner, c10::Device device, const DevicePeers& peers);
  // Waits for the transfers, unless it runs because of an exception.
  ~NcclTransport() override;

  // Makes TakesDevices false for all ranks, or lets it say what is true. The ranks must agree, and
  // have no transfers under way.
  void SetActive(bool active);
  const DevicePeers& peers() const;
  // Waits until everything that was posted has been launched. To be called before the rank waits
  // for others over the inner transport: a send may still wait for its receive.
  void LaunchAll();
  bool TakesDevices(int peer) const override;
  Token Send(int peer, int tag, Bundle bundle) override;
  Token Recv(int peer, int tag, Bundle bundle) override;
  bool Test(const Token& token) override;
  void ComeAfter(const Token& send) override;
  bool HasLeft(const Token& send) override;
  Token AllReduce(const std::vector<int>& ranks, int tag, Bundle bundle) override;
  size_t Pending() override;
  void BeginAction(int64_t step, int entry) override;
  std::vector<std::string> AllGather(const std::string& bytes) override;

 private:
  void Wait(const Token& token) override;

  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace pipewright
