// Defines the costs of actions: the input of the simulator and of zb-auto. The caller chooses the
// units: any unit of time, any unit of bytes, and bandwidth in bytes per unit of time.
#pragma once
#include <limits>
#include <map>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace pipewright {

// The most bytes that a microbatch takes while an action runs, including the messages received for
// it and its results. Figures below those of StageCosts have no effect.
struct PeakBytes {
  double F = 0, I = 0, B = 0, W = 0;
  // While the first B or W of a step runs, which creates the gradient sums. While later ones run,
  // the sums count in addition to B and W.
  double first_B = 0, first_W = 0;
  double step = 0;  // in addition to what is held then
  double forward_only = 0;  // an F in a plan without backward; 0: unknown, F counts instead
};

// Costs of one stage for one microbatch. All are finite and >= 0.
struct StageCosts {
  double F = 0, I = 0, W = 0;  // forward, input gradient, weight gradient
  double B = 0;                // full backward; default: I + W
  // Bytes held from the start of F to the end of I or B: what F creates for backward, and the
  // received inputs that the stage keeps.
  double activation = 1;
  double received = 0;    // the part of it that was received
  double kept_for_W = 0;  // bytes kept from the end of I to the end of W
  double weights = 0;     // bytes held throughout
  double gradients = 0;   // bytes of weight gradients: from a step's first B or W to its STEP
  double output = 0;           // bytes sent to each consumer stage, and back as gradients
  double step = 0;             // duration of its STEP
  double overlap = -1;         // a pair (this stage's F and some B) run as one; -1: F + B
  // With recomputation, I and B take `recompute` longer, and only `checkpoint` bytes are held from
  // F to I.
  double recompute = -1;  // time; -1: not available
  double checkpoint = 0;  // bytes
  PeakBytes recompute_peak;  // the peak of such an I or B
  PeakBytes peak;
  // The interquartile range of the measured times; 0: not known.
  struct {
    double F = 0, I = 0, B = 0, W = 0;
  } spread;
};

// The bytes that one stage sends another for one microbatch.
struct EdgeCosts {
  double bytes = 0, back = 0;  // the size of values, and of their gradients
};

struct LinkCosts {
  double latency = 0;
  double bandwidth = std::numeric_limits<double>::infinity();
};

struct Costs {
  std::vector<StageCosts> stages;                           // one entry stands for all stages
  std::map<std::pair<int, int>, StageCosts> stage_on_rank;  // (stage, rank): exceptions
  LinkCosts link;
  LinkCosts disk;  // for LOADs of weights; each rank has its own disk
  std::map<std::pair<int, int>, LinkCosts> links;  // (from rank, to rank): exceptions
  // Ranks on one machine have its link, other than `links` say.
  std::vector<int> machine;                        // by rank; empty: not known
  std::vector<LinkCosts> within;                   // by machine
  std::map<std::pair<int, int>, EdgeCosts> edges;  // (from stage, to stage): other than `output`
  std::string source = "costs";  // the file, for messages
};

// The format is in docs/reference/costs.md. Throws Error naming `path` and the key.
Costs ParseCosts(std::string_view text, const std::string& path);
Costs ReadCosts(const std::string& path);

// Returns the default costs: F, I, W and an activation 1, B 2, everything else 0.
Costs UnitCosts();

// Throws Error unless `costs` has one entry, or one for each of `stages` stages.
void CheckStages(const Costs& costs, int stages);

const StageCosts& CostsOf(const Costs& costs, int stage, int rank);
// Returns the bytes that go between two stages if `from_rank` runs the first.
EdgeCosts EdgeCostsOf(const Costs& costs, int from_stage, int to_stage, int from_rank);
const LinkCosts& LinkOf(const Costs& costs, int from_rank, int to_rank);

// Formats a cost for the user: "3", "2.5".
std::string Plain(double number);

// Returns the one-way time of `bytes` between two ranks; 0 within one rank.
double TransferTime(const Costs& costs, int from_rank, int to_rank, double bytes);

}  // namespace pipewright
