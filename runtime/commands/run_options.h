// The options of the commands of a run, and what several commands make of them.
#pragma once
#include <cstdint>
#include <string>
#include <vector>

#include "formats/job.h"
#include "runtime/session.h"

namespace pipewright {

struct RunOptions {
  std::string package, job, conf, weights;
  // Override the job's settings if given. `set`: see ReadJob.
  std::vector<std::string> set;
  std::string checkpoint;
  int64_t steps = -1;
  std::string schedule, save, metrics, report, save_gradients;
  std::string trace;        // the file for the last step's trace; empty: none
  bool resume = false;      // from the newest checkpoint in the job's folder, if there is one
  std::string resume_from;  // an existing checkpoint, or a folder of them
  // For infer.
  std::string input, output;
  std::vector<std::string> outputs;  // by name; empty: all
  int microbatches = 1;
  int threads = 0;                    // infer, generate: per rank; 0: LibTorch's default
  MatMul matmul = MatMul::kLibTorch;  // infer, generate; others use the job's
  bool on_request = false;            // serve measurements first: bench_requests.h
  // For weights on disk.
  std::string device_map, offload_dir, offload_report;
  std::string device;          // of every rank; empty: the conf's, or the job's
  DeviceLinks links = DeviceLinks::kAuto;
  bool share_devices = false;  // several ranks may compute on one device
  bool verify_files = false;  // compare all of each file that several ranks read, not samples
};

// Returns the options that must be the same on every rank: a rank that runs fewer steps, or does
// not take part in saving, would leave the others waiting. Files that are read are compared by
// their contents.
AgreedFields AgreedOptions(const RunOptions& options);

// Returns the options of a session that trains, or that runs forward only.
SessionOptions SessionOptionsOf(const RunOptions& options, bool training);

// Reads the job and applies the options that override it.
Job ReadJobOf(const RunOptions& options);

// Reads the job of a session as a phase of all ranks, and sets what holds for the whole process:
// threads and the library of matrix products. `evaluates`: validation data need not be there.
void ReadJobPhase(const RunOptions& options, bool evaluates, Session& session);

// Returns the files that a run reads, which no output may replace.
std::vector<std::string> ReadBy(const RunOptions& options, const Session& session);

// Returns the rank that collects all losses.
int LossRank(const Session& session);

}  // namespace pipewright
