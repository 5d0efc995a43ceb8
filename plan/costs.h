// What actions cost: the input of the simulator and of zb-auto. Units are the caller's: times in
// any one unit, bytes in any one unit, bandwidth in bytes per unit of time.
#pragma once
#include <limits>
#include <map>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace pipewright {

// One stage, one microbatch. All are finite and >= 0.
struct StageCosts {
  double F = 0, I = 0, W = 0;  // forward, input gradient, weight gradient
  double B = 0;                // full backward; I + W where not given
  double activation = 1;       // bytes held from the start of F to the end of I or B
  double kept_for_W = 0;       // bytes of those that stay from the end of I to the end of W
  double weights = 0;          // bytes held throughout
  double output = 0;           // bytes sent to each consumer stage, and back as gradients
  double step = 0;             // time of its STEP
  double overlap = -1;         // a pair (this stage's F; some B) run as one; -1: F + B
  // Recompute: I and B take `recompute` longer, and from F to I only `checkpoint` bytes are held.
  double recompute = -1;  // time; -1: not offered
  double checkpoint = 0;  // bytes
};

struct LinkCosts {
  double latency = 0;
  double bandwidth = std::numeric_limits<double>::infinity();
};

struct Costs {
  std::vector<StageCosts> stages;                           // one entry stands for all stages
  std::map<std::pair<int, int>, StageCosts> stage_on_rank;  // (stage, rank): where it differs
  LinkCosts link;
  LinkCosts disk;  // from where LOAD takes weights; each rank has its own
  std::map<std::pair<int, int>, LinkCosts> links;  // (from rank, to rank): where it differs
  std::string source = "costs";  // the file, for messages
};

// The format is in docs/reference/costs.md. Throws Error naming `path` and the key.
Costs ParseCosts(std::string_view text, const std::string& path);
Costs ReadCosts(const std::string& path);

// What counts without costs: F, I, W and an activation 1, B 2, all else nothing.
Costs UnitCosts();

// Throws Error unless `costs` has one entry, or one for each of `stages` stages.
void CheckStages(const Costs& costs, int stages);

const StageCosts& CostsOf(const Costs& costs, int stage, int rank);
const LinkCosts& LinkOf(const Costs& costs, int from_rank, int to_rank);

// "3", "2.5": a number of the costs' as people write it.
std::string Plain(double number);

// One-way time of `bytes` between two ranks; 0 on one rank.
double TransferTime(const Costs& costs, int from_rank, int to_rank, double bytes);

}  // namespace pipewright
