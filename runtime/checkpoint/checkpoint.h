// Writes checkpoints of a run in the background. resume.h reads them.
#pragma once
#include <atomic>
#include <future>
#include <memory>
#include <string>

#include "base/json.h"
#include "formats/weights/run_checkpoint.h"
#include "runtime/checkpoint/checkpoint_folder.h"
#include "runtime/session.h"

namespace pipewright {

// There is one per rank. Each writes the modules of which it is the first holder into a temporary
// folder. Where all ranks see the same folder, rank 0 waits for the last of them and then renames
// it. Where hosts have folders of their own, one rank of each does so with the shards of its ranks.
class Checkpointer {
 public:
  // Into the job's folder. Collective: removes what a run before left unfinished.
  Checkpointer(Session& session, const CheckpointFolder& folder);
  ~Checkpointer();

  // Saves a checkpoint if the job asks for one after `step` steps; the last step always gets one.
  // The next step starts at `data`. Throws Error if a write has failed.
  void AfterStep(int64_t step, const DataPosition& data);
  // Returns when weights and optimizer state have been copied and the previous checkpoint is
  // written. On every rank; collective where hosts do not share the folder. Throws Error if the
  // previous checkpoint failed.
  void Save(int64_t step, const DataPosition& data);
  // All that this rank tells of the step is where it goes: a checkpoint is complete only when every
  // rank has called this for its step.
  void Told(int64_t step) { told_ = step; }
  // Waits until everything is written. Collective; throws the same Error on every rank.
  void Finish();

 private:
  struct Shot;
  void Check();  // rethrows the error of a failed write
  void WaitFor(std::future<void>& work);
  bool Commits() const;
  void Write(Shot& shot);
  void Add(const Json& written, int rank, RunCheckpoint& checkpoint) const;
  bool Collect(Shot& shot);
  void Exchange(bool done);
  void RemoveOlder();
  void Commit(const Shot& shot);

  Session& session_;
  Transport& transport_;
  const CheckpointFolder& folder_;
  std::string job_text_;
  std::shared_ptr<Shot> apart_;  // one that waits for the shards of other hosts
  int64_t to_remove_ = -1;       // what is older than this step may be removed; -1: nothing
  std::atomic<bool> stop_{false};
  std::atomic<int64_t> told_{-1};
  std::atomic<int> missing_{-1};  // on rank 0: whose shards are not there yet; -1: none
  std::future<void> written_, committed_;  // the second only where it Commits
};

}  // namespace pipewright
