// Finds the best cuts of a chain of blocks by dynamic programming from its end.
#pragma once
#include "plan/partition/fast/sequence_dp.h"

namespace pipewright {

// An order as a chain of blocks, each with the units between two adjacent positions.
struct Chain {
  // A net that touches a block.
  struct Touch {
    double time, transfers, bytes, stash_bytes;
    int before;  // the previous block that the net touches; -1: none
    int first;   // its first block if this is its last one, else -1
  };
  std::vector<StageSums> blocks;
  std::vector<size_t> begin;  // touches of block b are [begin[b], begin[b + 1])
  std::vector<Touch> touches;
};
Chain ChainOf(const UnitGraph& graph, const std::vector<int>& order,
              const std::vector<int>& positions);

// Returns the best cuts at any of the positions with all loads under `below`; no stages if there
// are none. Subtracts its cost from `steps`.
SequenceCuts CutBlocks(const PartitionProblem& problem, const Chain& chain,
                       const Resources& resources, double below, int64_t& steps);

}  // namespace pipewright
