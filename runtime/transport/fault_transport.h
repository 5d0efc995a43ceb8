// FaultTransport wraps another transport and injects faults (delays, reordering, lost messages,
// dying ranks). Tests use it.
#pragma once
#include <cstdint>
#include <cstdlib>
#include <memory>
#include <string>
#include <vector>

#include "runtime/exec/transport.h"

namespace pipewright {

struct FaultOptions {
  // Each message is posted up to this many seconds late. Each pair of ranks has its own delay, so
  // messages of different pairs overtake each other, but those of one pair stay in order.
  double delay = 0;
  // Probability (0 to 1) that a message is held back until the rank posts one for another rank or
  // waits.
  double reorder = 0;
  uint64_t seed = 0;  // seeds both

  // The `message`-th send (from 0) of `rank` appears to leave but is never posted.
  struct Drop {
    int rank = -1;
    int64_t message = 0;
  };
  std::vector<Drop> drops;

  // Rank `rank` dies just before entry `entry` of its list in step `step` (both from 0).
  struct Death {
    int rank = -1;
    int64_t step = 0;
    int entry = 0;
    // kill, segfault, exit (code 0), leave (_exit, code 0), stop (SIGSTOP), throw
    std::string how;
  };
  std::vector<Death> deaths;

  bool any() const { return delay > 0 || reorder > 0 || !drops.empty() || !deaths.empty(); }
};

// Parses "delay=0.01,reorder=0.5,seed=3,drop=RANK:MESSAGE,die=RANK:STEP:ENTRY:HOW". "" means no
// faults. Throws Error for anything else.
FaultOptions ParseFaults(const std::string& text);

// `inner` must outlive this transport and must not be used directly meanwhile.
class FaultTransport : public WrappedTransport {
 public:
  FaultTransport(Transport& inner, const FaultOptions& options);
  // Posts all messages that are still held back.
  ~FaultTransport() override;

  Token Send(int peer, int tag, Bundle bundle) override;
  Token Recv(int peer, int tag, Bundle bundle) override;
  bool Test(const Token& token) override;
  void BeginCompute() override;
  size_t Pending() override;
  void BeginAction(int64_t step, int entry) override;
  std::vector<std::string> AllGather(const std::string& bytes) override;

 private:
  void Wait(const Token& token) override;

  struct State;
  std::unique_ptr<State> state_;
};

// Calls body(transport), wrapped with the faults of PIPEWRIGHT_FAULTS if it is set.
template <class F>
auto WithFaults(Transport& transport, F&& body) {
  const char* text = std::getenv("PIPEWRIGHT_FAULTS");
  if (!text || !*text) return body(transport);
  FaultTransport faulty(transport, ParseFaults(text));
  return body(static_cast<Transport&>(faulty));
}

}  // namespace pipewright
