// Tells ranks without data what they need to know about it; the first rank that reads it sends
// this.
#pragma once
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "formats/data/source.h"
#include "formats/job.h"
#include "plan/run/run_plan.h"
#include "runtime/exec/transport.h"

namespace pipewright {

// Returns, by rank, whether it reads the job's data: ranks with a stage that takes an input of the
// model and, if there are targets, those with one that makes an output. If there are none, the
// first rank reads.
std::vector<bool> ReadingRanks(const RunPlan& run, const Job& job);

// Describe a source (its columns, number of samples and kind of tokens), and create a source from
// this description that has no data.
std::string DescribeSource(const DataSource& source);
std::shared_ptr<DataSource> DescribedSource(const std::string& description);

// Sends the lengths of microbatches, which determine the sizes of all values. They are sent a
// minibatch ahead of their use, so no rank waits for them. Uses the tag kSizesTag.
class SharedLengths {
 public:
  // `told` lists the receiving ranks. `lengths` returns the lengths of a minibatch's microbatches
  // and is called on `teller` only.
  SharedLengths(Transport& transport, int teller, std::vector<int> told, int microbatches,
                std::function<std::vector<int64_t>(int64_t minibatch)> lengths);

  // Must be called on the teller and the receivers, for the same minibatches in the same order.
  // Also starts the transfer for the next minibatch. Returns nothing on the teller.
  std::vector<int64_t> Of(int64_t minibatch);
  // Drops what was sent ahead, on every rank: the data continue elsewhere.
  void Restart() { ahead_ = -1; }
  // Must be called before the transport is destroyed.
  void Finish();

 private:
  void Start(int64_t minibatch);

  Transport& transport_;
  const int teller_;
  const std::vector<int> told_;
  const size_t microbatches_;
  const std::function<std::vector<int64_t>(int64_t)> lengths_;
  int64_t ahead_ = -1;  // minibatch whose lengths are in flight
  std::shared_ptr<std::vector<int64_t>> arriving_;
  std::vector<Token> tokens_;
};

}  // namespace pipewright
