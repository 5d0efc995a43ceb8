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

// Each rank has one, which writes the modules that this rank is the first to hold into a temporary
// folder. If all ranks see the same folder, rank 0 renames it once all of them are done. If hosts
// have their own folders, one rank per host renames the host's folder once all ranks are done.
class Checkpointer {
 public:
  // Removes checkpoints that an earlier run left unfinished in `folder`. Collective.
  Checkpointer(Session& session, const CheckpointFolder& folder);
  ~Checkpointer();

  // Saves a checkpoint if the job asks for one after `step` steps; the last step always gets one.
  // The next step starts at `data`. Throws Error if a write has failed.
  void AfterStep(int64_t step, const DataPosition& data);
  // Returns when weights and optimizer state have been copied and the previous checkpoint is
  // written. On every rank; collective where hosts do not share the folder. Throws Error if the
  // previous checkpoint failed.
  void Save(int64_t step, const DataPosition& data);
  // Tells that this rank has written all its reports up to `step`. A checkpoint is complete only
  // after every rank has called this for its step.
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
  std::shared_ptr<Shot> apart_;  // waits for the shards of other hosts
  int64_t to_remove_ = -1;       // older checkpoints than this step may be removed; -1: none
  std::atomic<bool> stop_{false};
  std::atomic<int64_t> told_{-1};
  std::atomic<int> missing_{-1};  // on rank 0: the rank it waits for; -1: none
  std::future<void> written_, committed_;  // committed_: only if Commits()
};

}  // namespace pipewright
