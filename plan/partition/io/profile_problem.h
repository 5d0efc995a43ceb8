// Converts profiles to partition problems, in seconds and bytes. A profile in PipeDream's graph
// text is for a minibatch.
#pragma once
#include "formats/graph_text.h"
#include "formats/profile/profile.h"
#include "plan/partition/problem/problem.h"

namespace pipewright {

struct ProfileCosts {
  double bandwidth = 1e9;      // bytes per second of a link of 1
  double latency = 0;          // seconds per transfer
  double optimizer_state = 2;  // bytes of optimizer state per byte of parameters (Adam: 2)
};

// The nodes of the problem are those of the graph (see `graph_node`) except Input* sources, which
// cost nothing and belong to the first stage. A __getitem__ stays with its tuple. A value is an
// output; it is sent twice, forward and as a gradient. Memory: parameters, gradients and optimizer
// state once, outputs for each microbatch in flight, and a receive buffer for every value from or
// to another stage.
struct ProfileProblem {
  PartitionProblem problem;     // without devices
  std::vector<int> graph_node;  // by node of the problem
  std::vector<int> inputs;      // nodes of the graph that are left out
};
ProfileProblem ToProblem(const ModelGraph& graph, const ProfileCosts& costs);

// Makes the problem of a measured profile; `graph_node` and `inputs` are those of GraphOfProfile.
// Unlike above, only trained parameters have gradients and optimizer state, buffers count, and each
// microbatch in flight holds the bytes that its forward keeps for the backward. A value without a
// gradient is sent once. A shared weight costs the exchange of its gradient if its holders are in
// different stages.
ProfileProblem ToProblem(const Profile& measured, const ProfileCosts& costs);

// Sets the stage of every node in the graph; that of Input nodes is 0.
void SetStages(ModelGraph& graph, const ProfileProblem& profile, const PartitionResult& result);

}  // namespace pipewright
