// job.json: what a run needs besides the package. docs/job.md explains every key.
#pragma once
#include <cstdint>
#include <map>
#include <string>
#include <vector>

namespace pipewright {

// Where samples come from. Paths are resolved against the job file's folder.
struct DataJob {
  std::string tokens;                         // token file, or ...
  std::string tensors;                        // ... a safetensors file whose rows are samples
  int token_bytes = 1;                        // u8, u16, u32
  int64_t sequence_length = 0;                // tokens only
  std::map<std::string, std::string> inputs;  // model input -> tensor name (tensors only)
  std::string target;                         // tensor name; empty: the loss needs none
  bool shuffle = true;
};

struct LossJob {
  enum Kind { kCrossEntropy, kMse, kOutput } kind = kCrossEntropy;
  int output = 0;  // which output of the model it is taken from (kOutput: which one it is)
};

struct OptimizerJob {
  enum Kind { kSgd, kAdamW } kind = kSgd;
  std::string type = "sgd";  // its name in the job
  double lr = 1e-3;
  double weight_decay = 0;
  double momentum = 0, dampening = 0;  // SGD
  bool nesterov = false;
  double beta1 = 0.9, beta2 = 0.999, eps = 1e-8;  // AdamW
};

struct CheckpointJob {
  std::string folder;  // empty: none are written
  int64_t every = 0;   // steps; 0: only after the last
  int64_t keep = 3;    // how many stay; 0: all
};

struct Job {
  std::string path;
  std::string text;  // the file
  DataJob data;
  LossJob loss;
  OptimizerJob optimizer;
  CheckpointJob checkpoint;
  std::string schedule = "1f1b";
  std::string plan;  // a plan file to run instead of the schedule
  int microbatches = 1;
  int64_t microbatch_size = 1;  // samples
  int64_t steps = 1;
  uint64_t seed = 0;
  int threads = 1;            // of each rank
  int64_t log_every = 10;     // steps
  std::string save, metrics;  // files to write; empty: none
  bool stop_on_nan = true;
  bool check_shared = false;  // compare the copies of shared weights after every step
};

// Throws Error naming file, key, and what is allowed there.
Job ReadJob(const std::string& path);

}  // namespace pipewright
