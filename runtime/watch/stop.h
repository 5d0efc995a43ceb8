// Ends a run after a step that all ranks agree on.
#pragma once
#include <memory>
#include <vector>

#include "runtime/exec/transport.h"

namespace pipewright {

// Any rank may be asked to stop: SIGUSR1 sets StatusFile::RequestStop, and the watch forwards it to
// rank 0. At the end of each step rank 0 sends the others one byte that says whether the next step
// is the last. They read it at the end of that next step, when it has long arrived, so no rank
// waits for another and steps still overlap. Uses the tag kStopTag.
class StopAgreement {
 public:
  explicit StopAgreement(Transport& transport) : transport_(transport) {}

  // Must be called by every rank after each step. Returns the same on all ranks; true means that
  // there is no next step.
  bool AfterStep();
  // Must be called by every rank after its last step. Receives the messages that are still in
  // flight.
  void Finish();

 private:
  Transport& transport_;
  bool told_ = false;        // rank 0: it has announced that the next step is the last
  std::vector<Token> sent_;  // rank 0
  std::shared_ptr<char> arriving_;
  Token token_;  // receives `arriving_`
};

}  // namespace pipewright
