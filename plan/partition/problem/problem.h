// Defines the problem that partition searches solve: nodes, the values between them, and devices.
// All sources share this model: profiles of packages, PipeDream's graph text, instances of
// Tarnawski et al.
//
// The load of a stage is its compute plus its transfers: a value costs its transfer time once on
// the stage that makes it, if another stage uses it, and once on every other stage that uses it.
// The objective is the largest load (the steady-state bottleneck of the pipeline).
#pragma once
#include <limits>
#include <string>
#include <vector>

namespace pipewright {

inline constexpr double kInfinity = std::numeric_limits<double>::infinity();

struct PartitionNode {
  std::string name;
  double device_time = 0;          // forward and backward together, on a device of speed 1
  double forward_share = 1.0 / 3;  // the forward's share of the time; the rest is backward
  double host_time = 0;            // on a CPU
  bool device_ok = true;           // false: runs only on a CPU
  bool backward = false;           // follows its group; stages must be convex in forward nodes only
  int group = -1;                  // nodes of one group stay together; -1: on its own
  double static_bytes = 0;         // held once: weights, gradients, optimizer state, buffers
  double stash_bytes = 0;          // held for each microbatch in flight, by this node only
  double parameter_bytes = 0;      // exchanged between the replicas of a stage
};

struct PartitionValue {
  int producer = -1;  // -1: a weight shared by the consumers, which does not order them
  std::vector<int> consumers;
  double time = 0;    // the sum over its transfers between two stages, over a link of 1
  int transfers = 1;  // each costs transfer_latency; 2 if a gradient comes back
  double bytes = 0;   // the size of its receive buffers, on each side
  // Held once for each microbatch in flight by every stage that makes or uses the value.
  double stash_bytes = 0;
};

// A class of equal devices.
struct DeviceClass {
  std::string name = "gpu";
  int count = 1;
  bool host = false;           // a CPU: runs at host_time, pays for no transfer, has no limit
  double speed = 1, link = 1;  // divide compute and transfer times
  double memory_bytes = kInfinity;
  std::vector<int> numbers;  // the user's device numbers, ascending; empty: 0 to count - 1
};

// Selects how many microbatches a stage holds at once: one; or, for 1F1B, one more than there are
// devices after it; or, for GPipe, all. In the latter two, replicas share them.
enum class InFlight { kOne, k1F1B, kGPipe };

struct PartitionProblem {
  std::vector<PartitionNode> nodes;
  std::vector<PartitionValue> values;
  std::vector<DeviceClass> devices;
  int stages = -1;              // exact number; -1: up to the number of devices
  double transfer_latency = 0;  // fixed cost of one transfer
  int max_replicas = 1;         // per stage
  double exchange_time = 0;     // per byte of parameters, between replicas
  InFlight in_flight = InFlight::kOne;
  int microbatches = 1 << 30;
  // Bandwidth from one device to another, by number (row: from), as a multiple of a link of 1. The
  // `link` of a class is then the best one of its devices. Empty: each device has its own link.
  std::vector<std::vector<double>> pair_links;
  bool numeric_names = false;  // names are numbers, and are printed as such
  std::string time_unit;       // "s", or "" for the instance's own
};

struct PartitionStage {
  int device_class = 0;
  int device = 0;  // number of its first device within the class
  int replicas = 1;
  std::vector<int> numbers;  // the numbers of its devices; empty: `device` and those after it
  std::vector<int> nodes;            // ascending
  double compute = 0, transfer = 0;  // average time of each replica per microbatch
  double exchange = 0;               // gradient exchange between replicas, part of `transfer`
  double memory_bytes = 0;
  double Load() const { return compute + transfer; }
};

struct PartitionResult {
  bool feasible = false;
  double objective = kInfinity;
  double lower_bound = 0;
  bool proven = false;                 // optimal, or proven infeasible
  std::vector<PartitionStage> stages;  // in the order of the pipeline
  int64_t sets = 0;                    // ideals that the exact search enumerated
};

// Returns the microbatches in flight on a replica of a stage with `devices_after` devices after it.
int InFlightCount(const PartitionProblem& problem, int replicas, int devices_after);

// Returns true if memory is limited and a stage's need depends on the number of devices after it.
bool MemoryByPlace(const PartitionProblem& problem);

// Computes compute, transfer, exchange and memory of every stage and the objective from only the
// stages' nodes, classes and replicas, and numbers their devices. With pair_links, a value costs
// its producer's stage the slowest of its transfers, and each other stage its own; a transfer
// between replicas takes the slowest pair of them; and stages keep the devices that they have. The
// reference for the searches.
void EvaluatePartition(const PartitionProblem& problem, PartitionResult& result);

// Returns the stage of each node; -1 if none, since `result` may have only a partition's last
// stages.
std::vector<int> StageOfNode(const PartitionProblem& problem, const PartitionResult& result);

// Returns why `result` is not a valid partition, or "" if it is: it has each node once, groups
// together, forward nodes convex in pipeline order, and device counts and memory within limits.
std::string CheckPartition(const PartitionProblem& problem, const PartitionResult& result);

}  // namespace pipewright
