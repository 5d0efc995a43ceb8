// When ranks join the exchanges of gradients, for checks that run a plan without computing.
#pragma once
#include <string>
#include <vector>

#include "plan/lowering/reduce_order.h"
#include "plan/plan.h"

namespace pipewright {

// A rank joins an exchange (plan/lowering/reduce_order.h) at its last REDUCE_GRAD of a stage in it,
// in the order of the numbers, and stays there until all its ranks have joined.
class ExchangeJoins {
 public:
  ExchangeJoins(const Plan& plan, const StageGraph& graph);

  // Joins what is due at a REDUCE_GRAD. Returns the exchange whose other ranks are missing, or -1.
  // Appends to `freed` who has waited for an exchange that is now complete.
  int Join(int rank, int position, std::vector<int>& freed);
  // Returns the same exchange, without joining.
  int MissingAt(int rank, int position) const;
  // Lets `who`, any number, wait for an exchange.
  void Wait(int exchange, int who) { waits_[exchange].push_back(who); }
  // Returns the ranks that are missing in an exchange.
  std::vector<int> Missing(int exchange) const;

 private:
  struct Place {
    int step = 0, exchange = 0, position = 0;
    bool joined = false;
  };

  bool IsComplete(const Place& place) const;

  std::vector<ReduceExchange> exchanges_;
  std::vector<int> joined_;                 // [exchange], over all steps
  std::vector<std::vector<int>> waits_;     // [exchange]
  std::vector<std::vector<Place>> places_;  // [rank], in order
  std::vector<size_t> next_;                // [rank]
};

}  // namespace pipewright
