// Stages whose weights are not in memory throughout: LOAD brings them in, EVICT gives the room
// back.
#pragma once
#include <string>
#include <vector>

#include "plan/plan.h"

namespace pipewright {

struct Offload {
  std::vector<int> stages;      // ascending
  std::vector<double> weights;  // [stage] bytes, of all stages or of none (then each counts 1)
  double memory = 0;  // for weights of offloaded stages, on each rank; 0: two stages at once
  bool step = true;   // STEP uses them, too: not where those that come and go are frozen
  std::vector<int> forward_only{};  // ascending: stages whose backward has nothing to compute
  bool weight_grad = true;          // W uses weights, too: not where I computes what it adds up
  // [rank] bytes, counted in no stage's `weights`, of what several of the rank's stages use: there
  // from the first LOAD of one of them to the last EVICT, within the memory. Empty: none.
  std::vector<double> held{};
  std::string memory_name{};  // what gives the memory, for messages: "CONF: offload.memory"
};

// Adds LOAD and EVICT to a lowered plan or to a schedule; any that are there go first. A rank uses
// the weights of a stage in its computes and in its STEP, but for what Offload excepts. It loads
// them in the order in which it needs them, as early as the memory allows: the next stage's come
// while the one before computes. Room is made by what is needed again last, but not by what was
// used just before, unless nothing else is there. Throws Error when a stage is larger than the
// memory, or does not exist.
void InsertLoads(Plan& plan, const Offload& offload);

// Throws Error, rule "load", where a rank has an offloaded stage that it never loads, or more
// weights loaded than the memory holds. (Validate checks that computes stand between LOAD and
// EVICT.)
void CheckLoads(const Plan& plan, const Offload& offload);

// Per rank: the most bytes of weights that are loaded at once.
std::vector<double> LoadedPeaks(const Plan& plan, const Offload& offload);

}  // namespace pipewright
