// Runs profiles and benchmarks of candidates, each in its own processes, so that one that fails or
// runs out of memory affects nothing else.
#pragma once
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "base/json.h"
#include "tune/job/request.h"
#include "tune/measure/budget.h"

namespace pipewright {

// A measurement counts as disturbed if other programs use more cores than this.
inline constexpr double kDisturbing = 0.2;

struct TuneRun {
  std::string package, job, conf;
  int ranks = 1;
  bool in_process = false;  // ranks are threads, not processes that mpirun starts
  int steps = 3;
  TuneStart start = {};
};

// Returns true if so many ranks are threads: a single one here needs no mpirun.
bool RunsInProcess(const TuneRequest& request, int ranks);

// Returns why ranks whose tensors take so many bytes do not run on this host, if they would be
// here: more than 90 % of its memory, besides what processes take; "" if they may.
std::string WhyTooLarge(const TuneRequest& request, double bytes, int64_t memory);

// Throws Error if mpirun is needed and not there.
void CheckMpirun(const TuneRequest& request);

// Returns the options by which `pipewright-run` and `pipewright profile` start ranks.
std::vector<std::string> StartOptions(const TuneStart& start, int ranks, bool in_process);

// Returns how many of `ranks` ranks share a host at most: mpirun fills one host after the other.
int RanksOnOneHost(const std::string& hosts, int ranks);

// Returns the path of a program in this program's folder: an installation keeps both in one folder.
std::string ProgramBeside(const std::string& name);

// Runs a command and returns what it printed; none if the budget ended it. If it fails, throws
// Error with the first line of its own message. `others`, if given, gets the number of cores that
// other programs used meanwhile. `input`: a file for the program's stdin.
std::optional<std::string> OutputOf(const std::vector<std::string>& command,
                                    const TuneBudget& budget, double* others = nullptr,
                                    const std::string& input = "/dev/null");

// Returns the figures that `pipewright-run bench --json` prints for a run, and as "others" the
// number of cores that other programs used meanwhile; none if the budget ended it. Throws Error
// with the program's message.
std::optional<Json> BenchRun(const TuneRun& run, const TuneBudget& budget);

// A run of `infer` to measure. The job of `run` is not used, and its steps are passes.
struct InferRun {
  TuneRun run;
  std::string input;
  int microbatches = 1, threads = 1;
  std::string folder;  // for temporary files of the run
  std::string output;  // the file of the outputs
};

// Returns a loss that a JSON object has under `key`, which has null for NaN.
double LossIn(const Json& figures, const char* key);

// Trains steps of the run's job, which must not say where to save, and writes a line of metrics for
// each. `options`: more of `pipewright-run train`. Returns false if the budget ended it.
bool TrainSteps(const TuneRun& run, int steps, const std::string& metrics,
                const std::vector<std::string>& options, const TuneBudget& budget);

// Returns the loss of a step that TrainSteps ran, counted from 1; it may be NaN.
double LossOfStep(const std::string& metrics, int step);

// Returns the loss of the first minibatch of the run's job in evaluation with the weights of a
// file. It may be NaN; none if the budget ended it.
std::optional<double> LossOfEvaluation(const TuneRun& run, const std::string& weights,
                                       const std::string& metrics, const TuneBudget& budget);

struct MeasuredStep {
  double seconds = 0;         // the median of the measured steps
  int64_t process_bytes = 0;  // of the largest process
  double others = 0;          // cores that other programs used meanwhile
};

// Trains for `steps` steps after those in which modules choose how they compute, as the job of the
// run does, which must say neither where to save nor how many steps to run. `metrics` is a file for
// the figures of the steps.
std::optional<MeasuredStep> MeasureStep(const TuneRun& run, const std::string& metrics,
                                        const TuneBudget& budget);

// Measures passes, each from a start with all ranks ready to the last output, and not the first of
// them. None if the budget ended it.
std::optional<MeasuredStep> MeasurePass(const InferRun& run, const TuneBudget& budget);

// Returns the rate at which one pass of a run reads its weights on disk, in bytes per second; 0 if
// it takes no time, because they are in the page cache. None if the budget ended it.
std::optional<double> MeasureDisk(const InferRun& run, const TuneBudget& budget);

struct ProfileRun {
  std::string package, conf;  // the conf places the modules on the ranks
  std::string input;          // of inference: measure only the forward, with these; empty: training
  std::string job;  // of training, whose data the modules get; empty: the package's sample
  int ranks = 1;
  int threads = 1;         // of each rank
  int64_t microbatch = 1;  // samples
  int repeat = 5;
  bool in_process = false;  // as for TuneRun
  TuneStart start = {};
};

// Measures the modules of a package. Returns the text of a profile; none if the budget ended it.
// Throws Error with the program's message. `others`: as for OutputOf.
std::optional<std::string> MeasureProfile(const ProfileRun& run, const TuneBudget& budget,
                                          double& others);

}  // namespace pipewright
