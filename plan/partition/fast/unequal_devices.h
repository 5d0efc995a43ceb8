// Good partitions where devices are of so many kinds that not every set of them can be looked at.
#pragma once
#include "plan/partition/fast/fast.h"
#include "plan/partition/problem/partition_state.h"

namespace pipewright {

// As FastPartition: first as if devices were equal; then each stage gets the device that makes the
// slowest stage fastest (a bottleneck assignment), and the stages are cut anew for the devices as
// they then follow each other, as long as that helps; then with two devices exchanged at random.
PartitionResult UnevenPartition(const PartitionProblem& problem, const UnitGraph& graph,
                                const FastOptions& options);

// Gives the stages one device each (no CPU) such that the largest load is least. False where it is
// not under `below`: then nothing changes.
bool AssignDevices(const PartitionProblem& problem, const UnitGraph& graph, double below,
                   StagedUnits& units);

// The problem's devices, least first (CPUs before all); behind them, in their order, those that
// `units` takes.
DeviceSequence DevicesInTurn(const PartitionProblem& problem, const StagedUnits& units);

}  // namespace pipewright
