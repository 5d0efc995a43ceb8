// Ends a run after a step that all ranks agree on.
#pragma once
#include <memory>
#include <vector>

#include "runtime/exec/transport.h"

namespace pipewright {

// Any rank may be asked to stop (SIGUSR1 sets StatusFile::RequestStop; the watch carries it to rank
// 0). At the end of a step rank 0 tells the others, in one byte each, whether the next step is the
// last; they read it at the end of that one, where it has long been there: no rank waits for
// another, and steps go on overlapping. Uses the tag kStopTag.
class StopAgreement {
 public:
  explicit StopAgreement(Transport& transport) : transport_(transport) {}

  // Every rank, after each step: the same answer on all of them. True: there is no next step.
  bool AfterStep();
  // Every rank, after its last step: takes what is still under way.
  void Finish();

 private:
  Transport& transport_;
  bool told_ = false;        // rank 0: that the next step is the last
  std::vector<Token> sent_;  // rank 0
  std::shared_ptr<char> arriving_;
  Token token_;  // of `arriving_`
};

}  // namespace pipewright
