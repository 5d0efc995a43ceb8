// job.json: what a run needs besides the package. docs/reference/job.md explains every key.
#pragma once
#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "plan/optimizer_job.h"

namespace pipewright {

// Where samples come from: one of the four. Paths are resolved against the job file's folder.
struct DataJob {
  std::vector<std::string> tokens;                         // token files
  std::vector<std::string> tensors;                        // safetensors files: rows are samples
  std::map<std::string, std::vector<std::string>> arrays;  // name -> .npy files
  std::string plugin;                                      // a shared library: plan/data/source.h
  std::string plugin_options = "null";                     // JSON that it is given
  int token_bytes = 1;                                     // u8, u16, u32
  int64_t sequence_length = 0;                             // tokens only
  std::map<std::string, std::string> inputs;               // model input -> column of the source
  std::string target;                                      // column; empty: the loss needs none
  std::vector<std::string> targets = {};                   // by loss; empty: all have `target`
  std::string length;  // column: how much of each sample counts; empty: all of it
  bool shuffle = true;
};

struct LossJob {
  enum Kind { kCrossEntropy, kMse, kOutput } kind = kCrossEntropy;
  int64_t ignore_index = -100;  // cross_entropy: targets that do not count
  double label_smoothing = 0;   // cross_entropy
  int output = 0;           // which output of the model it is taken from (kOutput: which one it is)
  std::string output_name;  // instead: its name in the package
  std::string target;       // column of the data; empty: DataJob::target
  double weight = 1;        // in the sum of several losses
};

// Losses are multiplied before the backward pass and gradients divided after it, so that small ones
// do not vanish in 16 bits. A step whose gradients overflow is skipped.
struct LossScaleJob {
  bool used = false;
  double initial = 1;
  double growth = 2, backoff = 0.5;
  int64_t interval = 0;  // steps without overflow before it grows; 0: it stays as it is
};
struct LossScale {
  double factor = 1;
  int64_t good_steps = 0;  // since it last changed
  bool operator==(const LossScale&) const = default;
};

struct CheckpointJob {
  std::string folder;  // empty: none are written
  int64_t every = 0;   // steps; 0: only after the last
  int64_t keep = 3;    // how many stay; 0: all
};

// The loss of other data, forward only, now and then.
struct ValidationJob {
  int64_t every = 0;  // steps; 0: never
  int64_t steps = 0;  // minibatches; 0: all of the data
  DataJob data;
};

// What runs its forward again for its backward, instead of keeping what it computed.
struct RecomputeJob {
  bool all = false;
  std::vector<int> stages, modules;
};

// How modules compute (docs/internals/operation-lists.md): as autograd and the interpreter do, as lists of
// operations wherever these can be recorded, or the faster of both.
enum class BodyChoice { kAuto, kAutograd, kLists };
// By what a job calls them.
const std::vector<std::pair<std::string, BodyChoice>>& BodyNames();

// What multiplies matrices of float32; whoever opens a session of the job sees to it (UseMatMul in
// runtime/matmul.h). kAuto: oneDNN on AMD's processors.
enum class MatMul { kLibTorch, kOneDnn, kAuto };
const std::vector<std::pair<std::string, MatMul>>& MatMulNames();

struct Job {
  std::string path;
  std::string text;  // the file
  DataJob data;
  std::vector<LossJob> losses = std::vector<LossJob>(1);  // their weighted sum is trained
  OptimizerJob optimizer;
  LossScaleJob loss_scale;
  std::vector<std::string> freeze;  // patterns of parameter names
  CheckpointJob checkpoint;
  ValidationJob validation;
  std::string schedule = "1f1b";  // a name, or a file: then `plan` is the same
  std::string plan;               // a plan file to run instead of the schedule
  std::string costs;              // of the stages, for zb-auto; empty: all alike
  int64_t memory = 0;             // zb-auto: bytes that a rank may hold by the costs; 0: any
  int microbatches = 1;
  int64_t microbatch_size = 1;  // samples, of the largest microbatch
  int64_t minibatch_size = 0;   // samples; 0: microbatches x microbatch_size
  bool partial = false;         // what is left of an epoch is a smaller minibatch
  int accumulate = 1;           // minibatches to an optimizer step
  int64_t steps = 1;
  uint64_t seed = 0;
  int threads = 1;            // of each rank
  int64_t log_every = 10;     // steps
  std::string save, metrics;  // files to write; empty: none
  bool stop_on_nan = true;
  bool accuracy = false;      // of each step, for the metrics; validation always has it
  bool exact_reduce = false;  // gradients added in the order of the microbatches, over replicas too
  bool merge_buffers = false;  // of replicas, after each step
  RecomputeJob recompute;
  std::optional<BodyChoice> body;  // none: kAuto, and nothing is said of it
  MatMul matmul = MatMul::kLibTorch;
  bool check_shared = false;  // compare the copies of shared weights after every step
};

// Whether "schedule" names a file rather than a rule: it has a slash or ends in .csv.
bool IsPlanFile(const std::string& schedule);

// Another schedule, or plan file, than the job's. `where` names it in the Error for an unknown
// name.
void SetSchedule(Job& job, const std::string& schedule, const std::string& where = "--schedule");

// Throws Error naming file, key, and what is allowed there.
Job ReadJob(const std::string& path);

}  // namespace pipewright
