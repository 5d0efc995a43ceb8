// Checkpoints of a training run: FOLDER/step-00000020 and so on, and FOLDER/latest, which names the
// newest complete one. docs/guides/checkpoints.md describes the files.
#pragma once
#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "formats/job.h"

namespace pipewright {

// The start of the next minibatch: a position in the order in which `epoch` visits the samples.
struct DataPosition {
  int64_t epoch = 0, sample = 0;
  bool operator==(const DataPosition&) const = default;
};

struct CheckpointFile {
  uint64_t bytes = 0;
  std::string hash;  // HashFile
  std::string host;  // the host that has it; "": it is beside checkpoint.json, on a shared folder
};

struct RunCheckpoint {
  std::string path;  // its own folder
  std::string hash;  // the hash of checkpoint.json; all hosts' parts of a checkpoint have the same
  int64_t step = 0;  // optimizer steps done
  DataPosition data;
  uint64_t seed = 0;
  std::string optimizer;  // the job's type
  LossScale loss_scale;
  std::string job;                               // text of the job file
  std::map<std::string, std::string> read;       // hashes of the data and code that the run read
  std::map<std::string, CheckpointFile> files;   // by name
  std::map<std::string, std::string> weight_of;  // tensor -> file
};

// Returns a name such as "step-00000020".
std::string CheckpointName(int64_t step);
// Returns a name such as "module3.safetensors".
std::string ShardName(int module);
// Returns the file of the optimizer's state: "module3.state.safetensors" for "module3.safetensors".
std::string StateFileOf(const std::string& weights_file);
// Returns a name such as "module3.replica1of2.state.safetensors", for the buffers of one replica,
// which may differ from those of the others.
std::string ReplicaName(int module, int replica, int replicas);
// Returns a name such as "copies-rank2.safetensors", for tensors that the ranks of a host need and
// that another host's shard has.
std::string CopiesName(int rank);
bool IsCopies(const std::string& file);

// Returns the 64-bit FNV-1a hash of the whole file as 16 hex digits. Throws Error.
std::string HashFile(const std::string& path);

// Makes a folder of shards a checkpoint: writes the index, and checkpoint.json, which has the sizes
// and hashes of all other files and ends with its own hash.
void WriteRunCheckpoint(const RunCheckpoint& checkpoint);
// Reads a checkpoint, or the latest one in a folder of checkpoints or beside a file `latest`.
// Throws Error naming the file that is missing or was changed; does not open shards.
RunCheckpoint ReadRunCheckpoint(const std::string& path);
// Check the size of one of the checkpoint's files, and the hash that its content turned out to
// have. Throw Error naming the file.
void CheckShardSize(const RunCheckpoint& checkpoint, const std::string& file);
void CheckShardHash(const RunCheckpoint& checkpoint, const std::string& file, uint64_t hash);
// Reads the file and checks both.
void VerifyShard(const RunCheckpoint& checkpoint, const std::string& file);

// Verifies all files of the checkpoint that ReadRunCheckpoint finds at `path`, or whose index
// `path` is; or, if `path` is a shard, that file. Returns the number of verified files; 0 if `path`
// belongs to no checkpoint of a run. Throws Error for a changed or missing file.
size_t VerifyRunCheckpoint(const std::string& path);

// Returns the step of the checkpoint that `latest` in `folder` names, even if that is not there; -1
// if it names none.
int64_t LatestStep(const std::string& folder);
// Returns the complete checkpoints in `folder`: the one that `latest` names, then the others,
// newest first. Those of later steps than `latest` names come last: a run that went back has left
// them behind.
std::vector<std::string> ListCheckpoints(const std::string& folder);

// Returns "PATH: why" for step folders without checkpoint.json and, unless `step_folders`, for a
// `latest` that does not name a checkpoint.
std::vector<std::string> IncompleteCheckpoints(const std::string& folder,
                                               bool step_folders = false);

// Returns the path to write a checkpoint to before CommitCheckpoint. CleanCheckpoints removes such
// folders.
std::string TemporaryCheckpoint(const std::string& folder, const std::string& run, int64_t step);
void CleanCheckpoints(const std::string& folder);
// Syncs `temporary`, renames it to its final name, replacing what is there, points `latest` to it
// and removes all but the last `keep` (0: all stay) up to this step. Returns its path.
std::string CommitCheckpoint(const std::string& temporary, const std::string& folder, int64_t step,
                             int64_t keep);
// Removes all but the last `keep` (0: all stay) up to this step.
void RemoveOlderCheckpoints(const std::string& folder, int64_t step, int64_t keep);

}  // namespace pipewright
