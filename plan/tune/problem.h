// The problem of tuning: in which ways a package can run, at which costs. And one such way.
#pragma once
#include <cstdint>
#include <limits>
#include <optional>
#include <string>
#include <vector>

#include "formats/conf.h"
#include "formats/manifest.h"
#include "formats/profile/profile.h"
#include "plan/plan.h"
#include "plan/simulate/lower_bound.h"
#include "plan/tune/stage_order.h"

namespace pipewright {

// The name of the schedule in which stages compute only forwards, as soon as they can.
inline constexpr char kForwardOnly[] = "forward";

// A profile of the package's modules, measured while `ranks` ranks ran at the same time.
struct TuneProfile {
  int ranks = 1;
  Profile profile;  // by module, not by part; its `microbatch` is one of the candidate sizes
  // The job adds these to the times of modules, in seconds: the loss of a microbatch, and the
  // optimizer's step for each byte of trained parameters.
  double loss_forward = 0, loss_backward = 0, step_per_byte = 0;
  // Bytes that the loss of a microbatch takes: held until its backward, and at the peak of that
  // backward, which ends before that of the modules begins.
  double loss_kept = 0, loss_peak = 0;
  // The time in which replicas exchange gradients, divided by the time that their transfers take
  // according to `profile.links`.
  double exchange = 1;
  std::string body = {};  // of all modules, as in a job; empty: the job's
  // Bytes that a check of each module keeps from its forward to its backward. Peaks of modules have
  // the gradients that it makes besides. If the modules of a stage will be one, these are here,
  // too, and the check of a stage takes the sum. Empty: nothing is checked.
  std::vector<double> checks = {};
};

// Machines other than the profiled one, by rank; they may have more devices than ranks are used.
// Fewer ranks use the first, so the fastest come first. Empty vectors: as profiled.
struct TuneMachines {
  std::vector<double> speeds;  // of each rank; the profiled machine has 1
  std::vector<double> memory;  // bytes
  // The time of a forward and a backward that a schedule runs as one, divided by that of one after
  // the other: 0 to 1.
  std::vector<double> overlap;
  std::vector<int> machine;    // number of the rank's machine
  // Within each machine, by number, and between any two: seconds and bytes per second. They replace
  // the links of the profiles.
  std::vector<ProfileLink> within;
  ProfileLink between;
  std::vector<size_t> order;  // entries of the file's list "machines" in the order of their ranks
};

struct TuneProblem {
  Manifest manifest;
  std::vector<TuneProfile> profiles;  // one for each candidate (ranks, microbatch size, threads)
  TuneMachines machines;
  int64_t samples = 1;  // per step
  // The job's own number of microbatches for its own size: they need not be of equal size.
  int64_t microbatch_size = 0;
  int microbatches = 0;
  int loss_module = -1;             // computes what the loss is of; -1: the last
  double memory = kNoLimit;         // bytes that the tensors of a rank may take
  bool recompute = true;            // recompute stages where a schedule does not fit otherwise
  bool replicas = true;             // allow schedules that run a stage on several ranks
  bool searched = true;             // search for orders (zb-auto), too
  bool merges = false;              // the modules of a stage will be one: a model file is cut
  std::optional<StageOrder> order;  // only schedules whose stages all have this order
  // Passes of inference instead of steps: kForwardOnly is the only schedule, and where the weights
  // of a rank do not fit, some of its modules are on disk, as stages of their own.
  bool forward_only = false;
  double disk = std::numeric_limits<double>::infinity();  // bytes per second; ranks share it
  // At most this many of the best may have the same ranks, threads and microbatches: they differ
  // less than predictions err.
  size_t alike = 1 << 30;
};

struct TuneCandidate {
  int ranks = 1, threads = 1;
  int minibatches = 1;     // that a step runs one after the other
  int microbatches = 1;    // of each
  int64_t microbatch = 1;  // samples of the largest
  std::string schedule;
  Plan plan;                   // of a schedule that is not made by its name; without ranks: it is
  std::vector<int> recompute;  // stages, ascending
  std::string body;            // of all modules, as in a job; empty: the job's
  Conf conf;
  double step = 0;                 // predicted seconds; 0: does not fit, so not simulated
  double busy = 0;                 // seconds that the busiest rank computes
  double bound = 0;                // lower bound of the step that its search used; 0: none
  double bubble = 0;               // the idle share of the rank with the most idle time, 0 to 1
  std::vector<double> peak_bytes;  // by rank
};

// Returns the memory of the rank that takes most, in bytes.
double LargestPeak(const TuneCandidate& candidate);

// Returns true if the memory of any rank is limited.
bool HasLimit(const TuneProblem& problem);

// Returns the limit of a rank: the problem's, or that of its machine if that is less.
double RankLimit(const TuneProblem& problem, int rank);

// Returns into how many microbatches of a profile's size a step's samples are cut.
int MicrobatchesOf(const TuneProblem& problem, const TuneProfile& profile);

// Returns true if every rank is within its limit.
bool Fits(const TuneProblem& problem, const TuneCandidate& candidate);

}  // namespace pipewright
