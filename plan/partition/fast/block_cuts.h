// The best cuts of a chain of blocks, by dynamic programming from its end.
#pragma once
#include "plan/partition/fast/sequence_dp.h"

namespace pipewright {

// An order as a chain of blocks: units between two neighbouring positions become one.
struct Chain {
  // A net where it touches a block.
  struct Touch {
    double time, transfers, bytes, stash_bytes;
    int before;  // the block before that it touches; -1: none
    int first;   // where this is the last one: the first; else -1
  };
  std::vector<StageSums> blocks;
  std::vector<size_t> begin;  // touches of block b: begin[b] and on
  std::vector<Touch> touches;
};
Chain ChainOf(const UnitGraph& graph, const std::vector<int>& order,
              const std::vector<int>& positions);

// Cuts at any of the positions, with no load of `below` or more; without stages where that cannot
// be. The steps that it took are taken from `steps`.
OrderCuts CutBlocks(const PartitionProblem& problem, const Chain& chain, const Resources& resources,
                    double below, int64_t& steps);

}  // namespace pipewright
