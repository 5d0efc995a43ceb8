// A transport that misbehaves as told, around one that does not: what tests are driven with.
#pragma once
#include <cstdint>
#include <cstdlib>
#include <memory>
#include <string>
#include <vector>

#include "runtime/exec/transport.h"

namespace pipewright {

struct FaultOptions {
  // Every message is posted by its sender up to so many seconds late, each pair of ranks for
  // itself: messages of different pairs overtake each other, those of one pair do not.
  double delay = 0;
  // How often (0 to 1) a message is held back until the rank has posted one for another rank, or
  // waits.
  double reorder = 0;
  uint64_t seed = 0;  // of both

  // The `message`-th send (from 0) of `rank` is never posted, though it seems to leave.
  struct Drop {
    int rank = -1;
    int64_t message = 0;
  };
  std::vector<Drop> drops;

  // Rank `rank` ends when it is about to begin entry `entry` of its list, in step `step` (from 0).
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

// "delay=0.01,reorder=0.5,seed=3,drop=RANK:MESSAGE,die=RANK:STEP:ENTRY:HOW"; "" is no fault. Throws
// Error for anything else.
FaultOptions ParseFaults(const std::string& text);

// `inner` must outlive it, and be used through it alone.
class FaultTransport : public Transport {
 public:
  FaultTransport(Transport& inner, const FaultOptions& options);
  // Posts what it still holds back.
  ~FaultTransport() override;

  int rank() const override;
  int size() const override;
  int max_tag() const override;
  std::shared_ptr<void> Memory(size_t bytes) override;
  Token Send(int peer, int tag, Bundle bundle, void* stream = nullptr) override;
  Token Recv(int peer, int tag, Bundle bundle, void* stream = nullptr) override;
  bool Test(const Token& token) override;
  void Wait(const Token& token) override;
  void BeginCompute() override;
  bool NeedsProgress() const override;
  void Progress() override;
  size_t Pending() override;
  void BeginAction(int64_t step, int entry) override;
  std::vector<std::string> AllGather(const std::string& bytes) override;
  [[noreturn]] void Abort(const std::string& message, int exit_code) override;

 private:
  struct State;
  std::unique_ptr<State> state_;
};

// Calls body(transport), with the faults of PIPEWRIGHT_FAULTS where there are any.
template <class F>
auto WithFaults(Transport& transport, F&& body) {
  const char* text = std::getenv("PIPEWRIGHT_FAULTS");
  if (!text || !*text) return body(transport);
  FaultTransport faulty(transport, ParseFaults(text));
  return body(static_cast<Transport&>(faulty));
}

}  // namespace pipewright
