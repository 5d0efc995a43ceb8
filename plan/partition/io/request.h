// Reads the options of `pipewright partition`, and the input that they refer to.
#pragma once
#include <string>
#include <vector>

#include "formats/manifest.h"
#include "plan/partition/io/mode.h"
#include "plan/partition/io/profile_problem.h"
#include "plan/partition/pipedream/optimizer.h"
#include "plan/schedules/table.h"

namespace pipewright {

// A value of --in-flight; the others are names of schedules.
inline constexpr char kOneInFlight[] = "one";

struct PartitionRequest {
  std::string file, output, memory, in_flight, schedule = kDefaultSchedule;
  PartitionMode mode = PartitionMode::kExact;
  PartitionObjective objective = PartitionObjective::kBottleneck;
  std::vector<int> machines;
  std::vector<double> bandwidths, speeds, links;
  std::vector<std::string> memories, together, shared;
  int stages = -1, devices = -1, cpus = -1, replicas = 1, microbatches = 1 << 30;
  int repeat = 20;         // repetitions when a package is measured
  int64_t microbatch = 0;  // samples; 0: as in profile.json or the inputs
  std::string input;       // safetensors file to measure a package with, or ""
  double latency = -1,     // -1: not given
      optimizer_state = 2, time_limit = kInfinity, pipedream_memory = 16e9;
  double activation_compression_ratio = 0;
  bool straight_pipeline = false, use_memory_constraint = false, use_fewer_machines = false;
  bool json = false, explain = false, force = false;
  bool writes = false;  // `output` is given
};

// The contents of the file to partition, of any kind.
struct PartitionInput {
  enum Kind { kGraphText, kProfile, kTarnawski } kind = kGraphText;
  ModelGraph graph;  // from graph text or a profile
  Profile profile;   // kProfile
  int modules = 0;   // kProfile: modules of the package
  Json instance;     // kTarnawski
  bool has_graph() const { return kind != kTarnawski; }
};

// Returns true if the file is a package without a profile.json that fits the request
// (--microbatch-size, --input). The caller must then measure it.
bool NeedsMeasuring(const PartitionRequest& request);

// Reads the input, and detects its kind by content. For a package, reads its profile.json, or takes
// `measured` if that is given. Throws Error naming the file.
PartitionInput ReadPartitionInput(const PartitionRequest& request,
                                  const Profile* measured = nullptr);

// Returns the problem of `request`. `profile` maps its nodes to nodes of the graph. Throws
// UsageError for options that do not fit the input.
PartitionProblem MakeProblem(const PartitionInput& input, const PartitionRequest& request,
                             ProfileProblem& profile);

PipeDreamOptions UpstreamOptions(const PartitionRequest& request);

}  // namespace pipewright
