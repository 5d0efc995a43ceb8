// Checkpoints of a run, written in the background. resume.h reads them.
#pragma once
#include <atomic>
#include <future>
#include <memory>
#include <set>
#include <string>

#include "plan/run_checkpoint.h"
#include "runtime/session.h"

namespace pipewright {

// One for each rank. Each writes the modules of which it is the first holder into a temporary
// folder that all ranks can reach; rank 0 waits for the last and puts the folder in its place.
class Checkpointer {
 public:
  // Into the job's folder. Collective: removes what a run before left unfinished.
  Checkpointer(Session& session, Transport& transport);
  ~Checkpointer();

  // What the job asks for after `step` steps, of which the last always gets a checkpoint. The next
  // step starts at `data`. Throws Error when writing has failed.
  void AfterStep(int64_t step, const DataPosition& data);
  // Returns when weights and optimizer state are copied, and the checkpoint before is written. Not collective. Throws Error for that one.
  void Save(int64_t step, const DataPosition& data);
  // Waits until all is written. Collective; throws the same Error on every rank.
  void Finish();

 private:
  struct Shot;
  void Check();  // throws what writing has failed with
  void WaitFor(std::future<void>& work);
  void Write(Shot& shot);
  void Commit(const Shot& shot);

  Session& session_;
  Transport& transport_;
  std::string run_;  // tells apart the temporary folders of runs
  std::string job_text_;
  std::set<int> writers_;  // ranks
  std::atomic<bool> stop_{false};
  std::future<void> written_, committed_;  // the second on rank 0 only
};

}  // namespace pipewright
