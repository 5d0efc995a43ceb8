// Buffers (running statistics) of stages with replicas, which see a part of the microbatches each.
#pragma once
#include <map>
#include <vector>

#include "plan/conf.h"
#include "plan/manifest.h"
#include "runtime/exec/transport.h"
#include "runtime/messages.h"
#include "runtime/module.h"

namespace pipewright {

// Merges them after a step as WeightInfo::merge says, so that all replicas go on with, and files
// keep, the same:
// - updates: a norm's statistic s becomes k s + u with what a microbatch adds, u, and a constant k.
//   Every replica notes its u; the first applies all of them in the order of the microbatches.
//   The result is that of the stage on one rank, but for the rounding of u (to a float64);
// - sum: what all replicas counted, on top of what they started with;
// - mean: of the replicas, weighted by their microbatches, added in the order of the conf.
class ReplicaBuffers {
 public:
  // `modules`: of this rank. Refers to all of its arguments.
  ReplicaBuffers(const Manifest& manifest, const Conf& conf, int microbatches, int minibatches,
                 const std::map<int, LoadedModule>& modules);

  // Around a module's forward of a microbatch of the step (counted through its minibatches).
  void Before(int module);
  void After(int module, int place);

  // After a step. All replicas of a stage must call it; throws Error.
  void Merge(Transport& transport);

 private:
  // One that is merged.
  struct Buffer {
    size_t weight = 0;  // in ModuleInfo::held
    std::string merge;
    double kept = 1;   // of updates: k
    at::Tensor start;  // as the step began; undefined: no microbatch has come yet
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
  std::map<int, std::vector<Buffer>> buffers_;  // by module of a stage with replicas
};

}  // namespace pipewright
