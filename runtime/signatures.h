// What ranks without data need to know of it, told by the first rank that reads it.
#pragma once
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "plan/data/source.h"
#include "plan/job.h"
#include "plan/run_plan.h"
#include "runtime/exec/transport.h"

namespace pipewright {

// By rank, whether it reads the job's data: those with a stage that takes an input of the model
// and, where there are targets, those with one that makes an output. The first rank, where nobody
// would.
std::vector<bool> ReadingRanks(const RunPlan& run, const Job& job);

// The columns of a source, how many samples it has and what tokens they are; and a source that
// knows this and has none of them.
std::string DescribeSource(const DataSource& source);
std::shared_ptr<DataSource> DescribedSource(const std::string& description);

// Lengths of microbatches, from which the sizes of all that flows follow. They are sent a minibatch
// ahead of their use, so that nobody waits for them. Uses the tag kSizesTag.
class SharedLengths {
 public:
  // `told`: the ranks that are told. `lengths`: those of the microbatches of a minibatch, asked for
  // on `teller` only.
  SharedLengths(Transport& transport, int teller, std::vector<int> told, int microbatches,
                std::function<std::vector<int64_t>(int64_t minibatch)> lengths);

  // On the teller and those told, for the same minibatches in the same order. Those of the next
  // minibatch are on their way then. Gives nothing on the teller.
  std::vector<int64_t> Of(int64_t minibatch);
  // Before the transport ends.
  void Finish();

 private:
  void Start(int64_t minibatch);

  Transport& transport_;
  const int teller_;
  const std::vector<int> told_;
  const size_t microbatches_;
  const std::function<std::vector<int64_t>(int64_t)> lengths_;
  int64_t ahead_ = -1;  // the minibatch whose lengths are on their way
  std::shared_ptr<std::vector<int64_t>> arriving_;
  std::vector<Token> tokens_;
};

}  // namespace pipewright
