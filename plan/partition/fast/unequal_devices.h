// Finds good partitions if there are too many kinds of devices to try all sets of them.
#pragma once
#include "plan/partition/fast/fast.h"
#include "plan/partition/problem/partition_state.h"

namespace pipewright {

// Does what FastPartition does. First partitions as if devices were equal. Then, while that helps,
// assigns devices to stages so that the slowest stage is fastest (a bottleneck assignment), and
// cuts again for devices in that order. Then continues with two devices exchanged at random.
PartitionResult PartitionForUnequalDevices(const PartitionProblem& problem, const UnitGraph& graph,
                                           const FastOptions& options);

// Assigns each stage a device, except CPUs, such that the largest load is least. Returns false and
// changes nothing if that is not under `below`.
bool AssignDevices(const PartitionProblem& problem, const UnitGraph& graph, double below,
                   PartitionState& units);

// Returns the devices that `units` does not use, CPUs first, then by speed; then those that its
// stages use, in order.
DeviceSequence DevicesInTurn(const PartitionProblem& problem, const PartitionState& units);

}  // namespace pipewright
