// Sums gradients over ranks: those of shared weights over their holders, those of replicas over the
// ranks of a stage. Adds in the order of the holders, so the result has the same bits on any number
// of ranks (MPI_Allreduce guarantees no order), unless the transport adds.
#pragma once
#include <functional>
#include <map>
#include <vector>

#include "runtime/exec/executor.h"

namespace pipewright {

// Returns the rank that computes the sum.
int OwnerOf(const SharedGroup& group);

// Returns the ranks of a group whose sum an AllReduce can compute, ascending: each has one
// contribution and gets the sum. Empty for other groups.
std::vector<int> AllReduceRanks(const SharedGroup& group);

// Returns the pairs of ranks that exchange the group's contributions and its sum, if its owner
// adds.
RankPairs ReducePairs(const SharedGroup& group);

// The transport adds a group if StageBody::AllReduces says so, in an order of its own. Otherwise,
// the owner of the group receives the contributions, adds them, and sends the sum back. With as
// many groups as replicas, each with another owner, every rank sends and receives as much as in a
// ring.
class SharedReducer {
 public:
  // `wait` waits for a token of `rank`. Group g uses tag first_tag + g.
  SharedReducer(const std::vector<SharedGroup>& groups, StageBody& body, Transport& transport,
                int first_tag, std::function<void(const Token&, int rank)> wait);

  // Posts this rank's contribution to `group`, or the receives of the contributions of others,
  // ahead of the group's REDUCE_GRAD.
  void BeginEarly(int group);
  // Does the same at the REDUCE_GRAD, unless BeginEarly already did.
  void Begin(int group);

  // Adds and sends back the sums whose contributions have all arrived. Never waits.
  void Advance();

  // Waits until all groups whose REDUCE_GRAD was reached have their sum in all holders of this rank
  // that receive it.
  void Finish();

 private:
  struct Sent {
    int group, peer;
    Token token;
  };
  void Post(int group);
  void Sum(int group);
  void WaitForSent(std::vector<Sent>& sent);
  // Calls `f` as a part of the group's exchange, and adds the group's name to exceptions.
  template <class F>
  void Exchange(int group, F f, bool begins = false);

  const std::vector<SharedGroup>& groups_;
  StageBody& body_;
  Transport& transport_;
  const int first_tag_;
  const std::function<void(const Token&, int)> wait_;
  std::vector<char> early_;                 // by group: begun before its REDUCE_GRAD
  std::vector<int> due_;                    // groups that Finish waits for
  std::vector<Sent> contributions_, sums_;  // sends in flight
  std::map<int, Token> all_reduced_;        // groups that the transport adds
  // Groups summed here: the contributions of the other ranks, by holder.
  std::map<int, std::vector<std::pair<Bundle, Token>>> arriving_;
};

}  // namespace pipewright
