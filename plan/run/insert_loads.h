// Plans stages whose weights are not always in memory: inserts LOADs, which read the weights, and
// EVICTs, which free their memory.
#pragma once
#include <string>
#include <vector>

#include "plan/plan.h"

namespace pipewright {

struct Offload {
  std::vector<int> stages;      // ascending
  std::vector<double> weights;  // [stage] bytes of all stages; empty: each counts 1
  double memory = 0;            // for offloaded weights on each rank; 0: the two largest stages
  bool step = true;             // STEP uses them too; false if all offloaded ones are frozen
  std::vector<int> forward_only{};  // ascending: stages without backward computation
  bool weight_grad = true;          // W uses weights too; false if W only adds up what I computed
  // [rank] bytes that several of the rank's stages share and no stage's `weights` include. They are
  // in memory from the first LOAD of one of these stages to the last EVICT, within the limit.
  // Empty: none.
  std::vector<double> held{};
  std::string memory_name{};  // origin of the limit, for messages: "CONF: offload.memory"
};

// Adds LOAD and EVICT to a lowered plan or to a schedule, after removing existing ones. A rank uses
// the weights of a stage in its computes and its STEP, except as Offload says. It loads them in the
// order of use, as early as the memory allows: the next stage's weights are read while the previous
// one computes. Evicts the weights that are needed again last, but those just used only if there
// are no others. Throws Error if a stage is larger than the memory or does not exist.
void InsertLoads(Plan& plan, const Offload& offload);

// Throws Error, rule "load", if a rank never loads one of its offloaded stages, or if loaded
// weights exceed the memory. (Validate checks that computes are between LOAD and EVICT.)
void CheckLoads(const Plan& plan, const Offload& offload);

// Returns, by rank, the most bytes of weights that are loaded at once.
std::vector<double> LoadedPeaks(const Plan& plan, const Offload& offload);

}  // namespace pipewright
