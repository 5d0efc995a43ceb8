// The three things a run does.
#pragma once
#include <cstdint>
#include <string>

#include "plan/job.h"
#include "runtime/exec/transport.h"
#include "runtime/session.h"

namespace pipewright {

struct RunOptions {
  std::string package, job, conf, weights;
  // Override the job's where given.
  int64_t steps = -1;
  std::string schedule, save, metrics, save_gradients;
  bool resume = false;      // from the newest checkpoint in the job's folder, if there is one
  std::string resume_from;  // a checkpoint, or a folder of them, which must be there
  // infer
  std::string input, output;
  int microbatches = 1;
  int threads = 0;          // infer, generate: of each rank; 0: as LibTorch finds them
  MatMul matmul = MatMul::kLibTorch;  // infer, generate; other commands take the job's
  bool on_request = false;  // measure first: bench_requests.h
  // Weights on disk.
  std::string device_map, offload_dir, offload_report;
};

// The options that must be the same on every rank: a rank that runs fewer steps, or does not take
// part in saving, would leave the others waiting.
std::string AgreedText(const RunOptions& options);

// Each runs on every rank of `transport`. Throws the same Error on all of them.
void Train(const RunOptions& options, Transport& transport);
// The mean loss over the job's data (or `steps` minibatches of it), forward only.
void Evaluate(const RunOptions& options, Transport& transport);
// The model's outputs for the tensors in `input`, written to `output`.
void Infer(const RunOptions& options, Transport& transport);

}  // namespace pipewright
