// Merges buffers (running statistics) of replicated stages, where each replica sees only some of
// the microbatches.
#pragma once
#include <map>
#include <vector>

#include "formats/conf.h"
#include "formats/manifest.h"
#include "runtime/exec/transport.h"
#include "runtime/module/messages.h"
#include "runtime/module/module.h"

namespace pipewright {

// Merges the buffers after a step as WeightInfo::merge says, so that all replicas continue with the
// same values, and files contain them:
// - updates: a microbatch changes a norm's statistic s to k s + u, with its update u and a constant
//   k. Every replica records its u; the first applies all of them in the order of the microbatches.
//   The result is that of the stage on one rank, except for the rounding of u (to a float64);
// - sum: adds the counts of all replicas to the initial value;
// - mean: averages the replicas, weighted by their microbatches, in the order of the conf.
class ReplicaBuffers {
 public:
  // `modules` are those of this rank. Keeps references to all arguments.
  ReplicaBuffers(const Manifest& manifest, const Conf& conf, int microbatches, int minibatches,
                 const std::map<int, LoadedModule>& modules);

  // Must surround a module's forward of a microbatch of the step (counted through its minibatches).
  void Before(int module);
  void After(int module, int place);

  // Must be called after a step, by all replicas of a stage; throws Error.
  void Merge(Transport& transport);

 private:
  // A merged buffer.
  struct Buffer {
    size_t weight = 0;  // in ModuleInfo::held
    BufferMerge merge = BufferMerge::kMean;
    double kept = 1;   // for updates: k
    at::Tensor start;  // value at the start of the step; undefined before its first microbatch
    at::Tensor before;
    std::map<int, at::Tensor> updates;  // by place
  };
  at::Tensor Now(int module, const Buffer& buffer) const;
  int64_t OwnMicrobatches(int replica, int replicas) const;
  Tensors Mine(int module, Buffer& buffer, int64_t own) const;
  at::Tensor Merged(int module, const Buffer& buffer, const std::vector<at::Tensor>& brought) const;
  void MergeStage(const std::vector<int>& replicas, const std::vector<int>& modules,
                  Transport& transport);

  const Manifest& manifest_;
  const Conf& conf_;
  int microbatches_, minibatches_;
  const std::map<int, LoadedModule>& modules_;
  std::map<int, std::vector<Buffer>> buffers_;  // by module of a replicated stage
};

}  // namespace pipewright
