// Finds how much memory, or how many ranks, would be enough where nothing fits.
#pragma once
#include "plan/tune/search.h"

namespace pipewright {

struct TuneNeeds {
  // The least memory of a rank, in bytes and within 1 %, with which a search of the same problem
  // finds a candidate; 0 if it finds none with any memory.
  double memory = 0;
  // The fewest ranks with which it finds one within the problem's memory, with the profiles of the
  // most ranks; 0 if it finds none with MostRanks.
  int ranks = 0;
  bool of_devices =
      false;  // a larger TuneProblem::memory is not enough: each device needs `memory`
};

// Returns how many ranks can be used: as many as modules, and as devices that are described.
int MostRanks(const TuneProblem& problem);

// Runs the search with each number that it returns, and with about ten others.
TuneNeeds FindNeeds(const TuneProblem& problem);

}  // namespace pipewright
