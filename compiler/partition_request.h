// What `pipewright partition` is asked, and what it is asked about.
#pragma once
#include <string>
#include <vector>

#include "plan/manifest.h"
#include "plan/partition/pipedream.h"
#include "plan/partition/profile_problem.h"

namespace pipewright {

struct PartitionRequest {
  std::string file, mode = "exact", output, memory, in_flight, objective = "bottleneck",
                    schedule = "1f1b";
  std::vector<int> machines;
  std::vector<double> bandwidths, speeds, links;
  std::vector<std::string> memories, together, shared;
  int stages = -1, devices = -1, cpus = -1, replicas = 1, microbatches = 1 << 30;
  int repeat = 20;         // of a package that is measured here
  int64_t microbatch = 0;  // samples; 0: the package's profile.json, else as its inputs have them
  std::string input;       // to measure a package with: a safetensors file, or ""
  double latency = -1,     // -1: not given
      optimizer_state = 2, time_limit = kInfinity, pipedream_memory = 16e9;
  double activation_compression_ratio = 0;
  bool straight_pipeline = false, use_memory_constraint = false, use_fewer_machines = false;
  bool json = false, explain = false, force = false;
  bool writes = false;  // whether `output` is given
};

// The file that is partitioned, of whatever kind.
struct PartitionInput {
  enum Kind { kGraphText, kProfile, kTarnawski } kind = kGraphText;
  ModelGraph graph;  // of graph text and of profiles
  Profile profile;   // kProfile
  int modules = 0;   // kProfile: of the package
  Json instance;     // kTarnawski
  bool has_graph() const { return kind != kTarnawski; }
};

// Tells the kinds apart by content. A package stands for its profile.json; where it has none, it is
// measured (--microbatch, --repeat). Throws Error naming the file.
PartitionInput ReadPartitionInput(const PartitionRequest& request);

// The problem that `request` poses. `profile` says which node of the graph each of its nodes is.
// Throws UsageError for options that do not fit.
PartitionProblem MakeProblem(const PartitionInput& input, const PartitionRequest& request,
                             ProfileProblem& profile);

PipeDreamOptions UpstreamOptions(const PartitionRequest& request);

}  // namespace pipewright
