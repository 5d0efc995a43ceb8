// Sums gradients over ranks: of shared weights over their holders, of replicas over the ranks of a
// stage; always in the order of the holders, so that the result has the same bits on any number of
// ranks. (MPI_Allreduce promises no order.)
#pragma once
#include <functional>
#include <map>
#include <vector>

#include "runtime/exec/executor.h"

namespace pipewright {

// The owner of a group collects what the others give, adds, and sends the sum back. With as many
// groups as replicas, each owned by another, every rank sends and receives what a ring would.
class SharedReducer {
 public:
  // `wait` waits for a token of `rank`. Tags are first_tag + group.
  SharedReducer(const std::vector<SharedGroup>& groups, StageBody& body, Transport& transport,
                int first_tag, std::function<void(const Token&, int rank)> wait);

  // Posts what this rank gives to `group`, or the receives of what the others give, ahead of the
  // group's REDUCE_GRAD.
  void BeginEarly(int group);
  // The same at the REDUCE_GRAD; nothing where it was early.
  void Begin(int group);

  // Adds, and sends back, where all has arrived. Never waits.
  void Advance();

  // Waits until every group whose REDUCE_GRAD has come has the sum in all holders of this rank that
  // get it.
  void Finish();

 private:
  struct Sent {
    int group, peer;
    Token token;
  };
  void Post(int group);
  void Sum(int group);
  void WaitForSent(std::vector<Sent>& sent);
  // Calls `f`; what it throws is given the group's name.
  template <class F>
  void Named(int group, F f);

  const std::vector<SharedGroup>& groups_;
  StageBody& body_;
  Transport& transport_;
  const int first_tag_;
  const std::function<void(const Token&, int)> wait_;
  std::vector<char> early_;                 // by group: begun, its REDUCE_GRAD is still to come
  std::vector<int> due_;                    // groups that Finish waits for
  std::vector<Sent> contributions_, sums_;  // under way from here
  // Of groups summed here: by holder, what the other ranks give.
  std::map<int, std::vector<std::pair<Bundle, Token>>> arriving_;
};

}  // namespace pipewright
