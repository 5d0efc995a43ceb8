// A partition search decides on this: nodes, the values between them, and devices. One model for
// every source: profiles of packages, PipeDream's graph text, instances of Tarnawski et al.
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
  double forward_share = 1.0 / 3;  // of the time; the rest is backward
  double host_time = 0;            // on a CPU
  bool device_ok = true;           // false: runs only on a CPU
  bool backward = false;           // follows its group; only forward nodes decide what is convex
  int group = -1;                  // nodes of one group stay together; -1: on its own
  double static_bytes = 0;         // held once: weights, gradients, optimizer state, buffers
  double stash_bytes = 0;          // held for each microbatch in flight, by nobody else
  double parameter_bytes = 0;      // exchanged between the replicas of a stage
};

struct PartitionValue {
  int producer = -1;  // -1: a weight shared by the consumers, which gives no order
  std::vector<int> consumers;
  double time = 0;    // of all its transfers between two stages, over a link of 1
  int transfers = 1;  // each costs transfer_latency; 2 where a gradient comes back
  double bytes = 0;   // of its receive buffers, on each side
  // Held for each microbatch in flight by every stage that makes or uses it, once.
  double stash_bytes = 0;
};

// Devices that are alike.
struct DeviceClass {
  std::string name = "gpu";
  int count = 1;
  bool host = false;           // a CPU: runs at host_time, pays for no transfer, has no limit
  double speed = 1, link = 1;  // divide compute and transfer times
  double memory_bytes = kInfinity;
  std::vector<int> numbers;  // as people count devices, ascending; empty: 0 to count - 1
};

// A stage holds one microbatch at once; or, as 1F1B, one more than there are devices after it; or,
// as GPipe, all of them. Its replicas share the latter two.
enum class InFlight { kOne, k1F1B, kGPipe };

struct PartitionProblem {
  std::vector<PartitionNode> nodes;
  std::vector<PartitionValue> values;
  std::vector<DeviceClass> devices;
  int stages = -1;              // exactly so many; -1: up to the number of devices
  double transfer_latency = 0;  // fixed cost of one transfer
  int max_replicas = 1;         // of a stage
  double exchange_time = 0;     // a byte of parameters, between replicas
  InFlight in_flight = InFlight::kOne;
  int microbatches = 1 << 30;
  // Bandwidth from one device to another, by number (row: from), as a multiple of a link of 1;
  // empty: each device has a link of its own. A class's `link` is then the best that one of its
  // devices has.
  std::vector<std::vector<double>> pair_links;
  bool numeric_names = false;  // names are numbers, to be printed so
  std::string time_unit;       // "s" or "": the instance's own
};

struct PartitionStage {
  int device_class = 0;
  int device = 0;  // number of its first device within the class
  int replicas = 1;
  std::vector<int> numbers;          // of its devices; empty: `device` and those after it
  std::vector<int> nodes;            // ascending
  double compute = 0, transfer = 0;  // what each replica spends a microbatch on average
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
  int64_t sets = 0;                    // down-sets that the exact search enumerated
};

// Microbatches in flight on one replica of a stage with `devices_after` devices behind it.
int InFlightCount(const PartitionProblem& problem, int replicas, int devices_after);

// Says whether what a stage takes of a limited memory depends on how many devices are behind it.
bool MemoryByPlace(const PartitionProblem& problem);

// Fills compute, transfer, exchange and memory of every stage and the objective from the stages'
// nodes, classes and replicas alone; numbers their devices. With pair_links a value costs the stage
// that makes it the slowest of its ways, and each other one its own; a way between replicas is the
// slowest pair of them, and devices that a stage already has it keeps. An oracle for the searches.
void EvaluatePartition(const PartitionProblem& problem, PartitionResult& result);

// Why `result` is not a valid partition, or "": each node once, groups together, forward nodes
// convex in pipeline order, device counts and memory within limits.
std::string CheckPartition(const PartitionProblem& problem, const PartitionResult& result);

}  // namespace pipewright
