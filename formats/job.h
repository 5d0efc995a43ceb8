// Reads job.json, which has all that a run needs besides the package. docs/reference/job.md
// explains every key.
#pragma once
#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "formats/optimizer_job.h"

namespace pipewright {

// The source of samples: one of four kinds. Paths are relative to the job file's folder.
struct DataJob {
  std::vector<std::string> tokens;                         // token files
  std::vector<std::string> tensors;                        // safetensors files: rows are samples
  std::map<std::string, std::vector<std::string>> arrays;  // name -> .npy files
  std::string plugin;                                      // shared library (formats/data/source.h)
  std::string plugin_options = "null";                     // JSON that is passed to the plugin
  int token_bytes = 1;                                     // 1, 2 or 4 (u8, u16, u32)
  int64_t sequence_length = 0;                             // tokens only
  std::map<std::string, std::string> inputs;               // model input -> column of the source
  std::string target;                                      // column; empty: no loss needs it
  std::vector<std::string> targets = {};                   // by loss; empty: all use `target`
  std::string length;  // column with the used length of each sample; empty: all of it
  bool shuffle = true;
};

struct LossJob {
  enum Kind { kCrossEntropy, kMse, kOutput, kNll, kL1, kSmoothL1, kBceWithLogits, kKlDiv };
  Kind kind = kCrossEntropy;
  int64_t ignore_index = -100;   // cross_entropy, nll: targets with this value are ignored
  std::optional<int> class_dim;  // cross_entropy, nll; none: the one that the sizes allow
  int fixed_dim = 0;             // 1 or the last, if only that one has a fixed size; 0: not known
  double label_smoothing = 0;    // cross_entropy
  double beta = 1;               // smooth_l1
  bool log_target = false;       // kl_div
  bool batch_mean = false;       // kl_div: the sum is divided by the samples
  int output = 0;               // index of the model output (kOutput: the output that is the loss)
  std::string output_name;      // alternatively: its name in the package
  std::string target;       // column of the data; empty: DataJob::target
  double weight = 1;        // in the sum of several losses

  // Returns true if targets are class indices.
  bool HasClasses() const { return kind == kCrossEntropy || kind == kNll; }
};

// Losses are multiplied before the backward pass and gradients divided after it, so that small
// gradients do not underflow in 16 bits. A step whose gradients overflow is skipped.
inline constexpr double kInitialLossScale = 65536;  // of a factor that changes, if none is given
struct LossScaleJob {
  bool used = false;
  double initial = 1;
  double growth = 2, backoff = 0.5;
  int64_t interval = 0;  // steps without overflow before it grows; 0: constant
};
struct LossScale {
  double factor = 1;
  int64_t good_steps = 0;  // since the last change
  bool operator==(const LossScale&) const = default;
};

struct CheckpointJob {
  std::string folder;  // empty: none are written
  int64_t every = 0;   // steps; 0: only after the last
  int64_t keep = 3;    // number of checkpoints to keep; 0: all
};

// Periodic evaluation of the loss on other data, forward only.
struct ValidationJob {
  int64_t every = 0;  // steps; 0: never
  int64_t steps = 0;  // minibatches; 0: all of the data
  DataJob data;
};

// Modules or stages that recompute activations in the backward pass instead of keeping them.
struct RecomputeJob {
  bool all = false;
  std::vector<int> stages, modules;
};

// Selects how modules compute (docs/internals/operation-lists.md): with autograd and the
// interpreter, as lists of operations where these can be recorded, or with the faster of the two.
enum class BodyChoice { kAuto, kAutograd, kLists };
// Returns the names of the choices in a job.
const std::vector<std::pair<std::string, BodyChoice>>& BodyNames();

// Selects the library that multiplies float32 matrices. The opener of a session applies it
// (UseMatMul in runtime/cpu/matmul.h). kAuto: oneDNN on AMD processors.
enum class MatMul { kLibTorch, kOneDnn, kAuto };
const std::vector<std::pair<std::string, MatMul>>& MatMulNames();

struct Job {
  std::string path;
  std::string text;  // the file without comments and with all changes
  DataJob data;
  std::vector<LossJob> losses = std::vector<LossJob>(1);  // their weighted sum is trained
  OptimizerJob optimizer;
  LossScaleJob loss_scale;
  std::vector<std::string> freeze;  // patterns of parameter names
  CheckpointJob checkpoint;
  ValidationJob validation;
  std::string schedule = "1f1b";  // a name, or a file, which is then also in `plan`
  std::string plan;               // a plan file to run instead of the schedule
  std::string costs;              // zb-auto: file with the stages' costs; empty: all equal
  int64_t memory = 0;             // zb-auto: limit per rank, in bytes as in `costs`; 0: none
  int microbatches = 1;
  int64_t microbatch_size = 1;  // samples, of the largest microbatch
  int64_t minibatch_size = 0;   // samples; 0: microbatches x microbatch_size
  bool partial = false;         // use the remainder of an epoch as a smaller minibatch
  int accumulate = 1;           // minibatches per optimizer step
  int64_t steps = 1;
  uint64_t seed = 0;
  int threads = 1;            // per rank
  int64_t log_every = 10;     // steps
  std::string save, metrics, report;  // files to write; empty: none
  std::string tensorboard;            // folder for an event file; empty: none
  bool stop_on_nan = true;
  bool accuracy = false;       // compute it in each step too; validation always does
  bool exact_reduce = false;   // add gradients in the order of the microbatches, also over replicas
  bool merge_buffers = false;  // merge the replicas' buffers after each step
  RecomputeJob recompute;
  std::optional<BodyChoice> body;  // none: kAuto, without a message
  MatMul matmul = MatMul::kLibTorch;
  std::string device;         // of every rank: "cpu", "auto", "cuda", "cuda:0", ...; empty: CPU
  bool tf32 = false;          // CUDA: let float32 products round their factors to TF32
  bool check_shared = false;  // compare the copies of shared weights after every step
};

// Returns true if "schedule" names a file, not a rule: it has a slash or ends in .csv.
bool IsPlanFile(const std::string& schedule);

// Replaces the job's schedule or plan file. `where` is named in the Error for an unknown name.
void SetSchedule(Job& job, const std::string& schedule, const std::string& where = "--schedule");

// Reads the job file, which may have comments. Each of `changes`, such as "optimizer.lr=0.1",
// replaces or adds a value first: a path of keys and, in lists, of indices from 0; then JSON or,
// failing that, text. Throws Error naming file, key, and allowed values.
Job ReadJob(const std::string& path, const std::vector<std::string>& changes = {});
// Returns the job in JSON that was read from `file`. Errors name `name`: the file and any changes.
Job ParseJob(const Json& in, const std::string& file, const std::string& name);

// Sets one value of a job, such as "optimizer.lr=0.1". Makes objects that are missing on the path.
void ChangeJob(Json& job, const std::string& change);

// Returns the name of a changed job in messages: "job.json with --set optimizer.lr=0.1".
std::string JobName(const std::string& path, const std::vector<std::string>& changes);

// Returns the keys that a job file may have at its top.
const std::vector<std::string>& JobKeys();

}  // namespace pipewright
