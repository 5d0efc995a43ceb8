// A profile in PipeDream's graph text as a partition problem: seconds and bytes a minibatch.
#pragma once
#include "formats/graph_text.h"
#include "formats/profile/profile.h"
#include "plan/partition/problem/problem.h"

namespace pipewright {

struct ProfileCosts {
  double bandwidth = 1e9;      // bytes a second, of a link of 1
  double latency = 0;          // seconds a transfer
  double optimizer_state = 2;  // bytes of optimizer state a byte of parameters (Adam: 2)
};

// Nodes of the problem are the nodes of the graph without Input* sources, which cost nothing and
// belong to the first stage: `graph_node` says which. A __getitem__ stays with its tuple. A value
// is an output; forward and back it is sent twice. Memory: parameters, gradients and optimizer
// state once, outputs for each microbatch in flight, a receive buffer for every value from or to
// another stage.
struct ProfileProblem {
  PartitionProblem problem;     // without devices
  std::vector<int> graph_node;  // of each node of the problem
  std::vector<int> inputs;      // nodes of the graph that are left out
};
ProfileProblem ToProblem(const ModelGraph& graph, const ProfileCosts& costs);

// Makes the problem of a measured profile; `graph_node` and `inputs` are those of GraphOfProfile.
// Only parameters that take gradients have some, and optimizer state; buffers count. In flight is
// what each forward keeps for its backward. A value that carries no gradient is sent once. A shared
// weight costs its gradient's exchange where its holders are apart.
ProfileProblem ToProblem(const Profile& measured, const ProfileCosts& costs);

// Writes the stage of every node into the graph, Input nodes into stage 0.
void SetStages(ModelGraph& graph, const ProfileProblem& profile, const PartitionResult& result);

}  // namespace pipewright
