// Writes checkpoints of a run in the background. resume.h reads them.
#pragma once
#include <atomic>
#include <future>
#include <memory>
#include <set>
#include <string>

#include "formats/weights/run_checkpoint.h"
#include "runtime/session.h"

namespace pipewright {

// There is one per rank. Each writes the modules of which it is the first holder into a temporary
// folder that all ranks can reach. Rank 0 waits for the last of them and then renames the folder.
class Checkpointer {
 public:
  // Into the job's folder. Collective: removes what a run before left unfinished.
  explicit Checkpointer(Session& session);
  ~Checkpointer();

  // Saves a checkpoint if the job asks for one after `step` steps; the last step always gets one.
  // The next step starts at `data`. Throws Error if a write has failed.
  void AfterStep(int64_t step, const DataPosition& data);
  // Returns when weights and optimizer state have been copied and the previous checkpoint is
  // written. Not collective. Throws Error if the previous checkpoint failed.
  void Save(int64_t step, const DataPosition& data);
  // Waits until everything is written. Collective; throws the same Error on every rank.
  void Finish();

 private:
  struct Shot;
  void Check();  // rethrows the error of a failed write
  void WaitFor(std::future<void>& work);
  void Write(Shot& shot);
  void Commit(const Shot& shot);

  Session& session_;
  Transport& transport_;
  std::string run_;  // distinguishes the temporary folders of runs
  std::string job_text_;
  std::set<int> writers_;  // ranks
  std::atomic<bool> stop_{false};
  std::future<void> written_, committed_;  // the second on rank 0 only
};

}  // namespace pipewright
