// Reproduces PipeDream's optimizer: its objective, its options and, for compatibility, its flaws.
// Source: Narayanan et al., SOSP 2019, and optimizer/optimizer_graph_hierarchical.py of
// msr-fiddle/pipedream, whose results this reproduces. docs/internals/searches.md names the flaws.
#pragma once
#include <optional>
#include <string>
#include <vector>

#include "formats/graph_text.h"

namespace pipewright {

struct PipeDreamOptions {
  std::vector<int> machines;       // by level, innermost first (-n)
  std::vector<double> bandwidths;  // bytes per second, of each level (-b)
  double memory_bytes = 16e9;      // per machine (-s)
  bool straight_pipeline = false;  // no replication
  bool use_memory_constraint = false;
  bool use_fewer_machines = false;
  std::optional<double> activation_compression_ratio;  // without it transfers cost nothing
};

struct PipeDreamStage {
  int first_state = 0, end_state = 0;  // states [first, end) that it adds; upstream's "split"
  int replicas = 1;                    // over all levels
  std::vector<int> nodes;              // positions in the graph, Input nodes in the first stage
  double compute_s = 0;                // per minibatch, on one machine
  double transfer_s = 0;  // the slower of its input and output, as the objective counts
  double allreduce_s = 0;
  double memory_bytes = 0;  // activations and parameters; not multiplied by versions
};

struct PipeDreamResult {
  bool feasible = false;
  double seconds_per_minibatch = 0;  // the optimizer's objective
  double one_machine_s = 0;
  double data_parallel_s = 0;  // all machines as replicas of one stage
  int states = 0;
  std::vector<PipeDreamStage> stages;
};

// Runs the optimizer. The number of states grows with the number of ways to cut the graph; throws
// Error for more than `max_states`. Ties are broken by the rule in docs/internals/searches.md, so
// that equal input gives equal output.
PipeDreamResult PipeDreamPartition(const ModelGraph& graph, const PipeDreamOptions& options,
                                   int max_states = 20000);

}  // namespace pipewright
