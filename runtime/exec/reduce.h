// Sums the gradients of shared weights over their holders, always in the order of the holders, so
// that the result has the same bits on any number of ranks. (MPI_Allreduce promises no order.)
#pragma once
#include <functional>
#include <vector>

#include "runtime/exec/executor.h"

namespace pipewright {

class SharedReducer {
 public:
  // `wait` waits for a token of `rank`. Tags are first_tag + group.
  SharedReducer(const std::vector<SharedGroup>& groups, StageBody& body, Transport& transport,
                int first_tag, std::function<void(const Token&, int rank)> wait);

  // For each of `groups` (ascending): the rank of the first holder collects, adds and sends the sum
  // back; the others send their gradients and return at once.
  void Begin(const std::vector<int>& groups);

  // Waits until every group begun has the sum in all holders of this rank.
  void Finish();

 private:
  struct Sent {
    int group, peer;
    Token token;
  };
  void Sum(int group);
  // Calls `f`; what it throws is given the group's name.
  template <class F>
  void Named(int group, F f);

  const std::vector<SharedGroup>& groups_;
  StageBody& body_;
  Transport& transport_;
  const int first_tag_;
  const std::function<void(const Token&, int)> wait_;
  std::vector<int> begun_;                  // whose sum comes from another rank
  std::vector<Sent> contributions_, sums_;  // under way from here
  std::vector<std::vector<std::pair<Bundle, Token>>> arriving_;  // [group][holder]
};

}  // namespace pipewright
