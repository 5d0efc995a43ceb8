// Checkpoints of a training run: FOLDER/step-00000020 and so on, and FOLDER/latest, which names the
// newest complete one. docs/guides/checkpoints.md describes the files.
#pragma once
#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "formats/job.h"

namespace pipewright {

// Where the next minibatch starts: a place in the order in which `epoch` visits the samples.
struct DataPosition {
  int64_t epoch = 0, sample = 0;
  bool operator==(const DataPosition&) const = default;
};

struct CheckpointFile {
  uint64_t bytes = 0;
  std::string hash;  // HashFile
  std::string host;  // where it lies; "": beside checkpoint.json, as all do where hosts share it
};

struct RunCheckpoint {
  std::string path;  // of its own folder
  std::string hash;  // of checkpoint.json: the same for all hosts' parts of a checkpoint
  int64_t step = 0;  // optimizer steps done
  DataPosition data;
  uint64_t seed = 0;
  std::string optimizer;  // the job's type
  LossScale loss_scale;
  std::string job;                               // text of the job file
  std::map<std::string, std::string> read;       // hashes, by the data or code that they are of
  std::map<std::string, CheckpointFile> files;   // by name
  std::map<std::string, std::string> weight_of;  // tensor -> file
};

// "step-00000020"
std::string CheckpointName(int64_t step);
// "module3.safetensors"
std::string ShardName(int module);
// "module3.safetensors" holds weights; "module3.state.safetensors" what the optimizer keeps.
std::string StateFileOf(const std::string& weights_file);
// "module3.replica1of2.state.safetensors": the buffers of one replica, which may be its own.
std::string ReplicaName(int module, int replica, int replicas);
// "copies-rank2.safetensors": what the ranks of a host need and another host's shard holds.
std::string CopiesName(int rank);
bool IsCopies(const std::string& file);

// 64-bit FNV-1a of the whole file, as 16 hex digits. Throws Error.
std::string HashFile(const std::string& path);

// Writes what makes a folder of shards a checkpoint: the index, and checkpoint.json, which holds
// size and hash of all others, and ends with a hash of its own.
void WriteRunCheckpoint(const RunCheckpoint& checkpoint);
// `path`: a checkpoint, or a folder of them, or its file `latest`. Throws Error naming what is
// missing or not as it was written; shards are not opened.
RunCheckpoint ReadRunCheckpoint(const std::string& path);
// Checks the size of one of its files, or what the hash of its content came to. Throws Error naming
// it.
void CheckShardSize(const RunCheckpoint& checkpoint, const std::string& file);
void CheckShardHash(const RunCheckpoint& checkpoint, const std::string& file, uint64_t hash);
// Reads it for both.
void VerifyShard(const RunCheckpoint& checkpoint, const std::string& file);

// Verifies the files that ReadRunCheckpoint takes, or those of the checkpoint whose index `path`
// is, or one shard. Returns how many are as they were written; 0 if `path` belongs to no checkpoint
// of a run. Throws Error.
size_t VerifyRunCheckpoint(const std::string& path);

// Complete checkpoints in `folder`: the one that `latest` names, then the others, newest first.
std::vector<std::string> ListCheckpoints(const std::string& folder);

// Lists what looks like a checkpoint and is none, each as "PATH: why": step folders without
// checkpoint.json, which `step_folders` keeps alone, and a `latest` that names nothing.
std::vector<std::string> IncompleteCheckpoints(const std::string& folder,
                                               bool step_folders = false);

// A name for what is not yet a checkpoint; such are removed by CleanCheckpoints.
std::string TemporaryCheckpoint(const std::string& folder, const std::string& run, int64_t step);
void CleanCheckpoints(const std::string& folder);
// Syncs `temporary`, renames it to its place, in exchange for what may be there, points `latest` to
// it and removes all but the last `keep` (0: all stay) up to this step. Returns its path.
std::string CommitCheckpoint(const std::string& temporary, const std::string& folder, int64_t step,
                             int64_t keep);
// Removes all but the last `keep` (0: all stay) up to this step.
void RemoveOlderCheckpoints(const std::string& folder, int64_t step, int64_t keep);

}  // namespace pipewright
