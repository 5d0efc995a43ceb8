// Recomputes the forward of modules in the backward. The results are the same, because random
// numbers depend on seed, step, microbatch and operation, and buffers are restored.
#include <ATen/ATen.h>

#include <set>
#include <string>
#include <utility>

#include "runtime/stage/stage_state.h"

namespace pipewright {

namespace {

// Keeps the version counter: tensors saved for another microbatch's backward stay valid.
void Write(const at::Tensor& to, const at::Tensor& from) {
  at::AutoDispatchBelowADInplaceOrView guard;
  to.copy_(from);
}

}  // namespace

// Runs the first forward, in gradient mode like the second, because kernels may differ without it.
std::vector<c10::IValue> TorchStages::State::RunForgetting(int index, int microbatch,
                                                           std::vector<c10::IValue> given) {
  const LoadedModule& module = modules.at(index);
  const std::vector<WeightInfo>& held = manifest.modules[index].held;
  // The first run shows which buffers forward changes, and its code which it may change later.
  auto [found, first] = changing.try_emplace(index);
  if (first)
    for (size_t w = 0; w < held.size(); ++w)
      if (held[w].kind == WeightKind::kBuffer) found->second.push_back(w);
  std::vector<size_t>& may_change = found->second;
  Tensors before;
  for (size_t w : may_change) before.push_back(module.weights[w].clone());
  if (!recomputed[conf.module_to_stage[index]]) WorkOf(index, microbatch).inputs = given;
  Kept forgotten;
  std::vector<c10::IValue> outputs = RunModule(index, microbatch, std::move(given), &forgotten);
  if (first) {
    const std::set<std::string>& names = Written(index);
    std::vector<size_t> changed;
    Tensors kept_buffers;
    for (size_t i = 0; i < may_change.size(); ++i) {
      const size_t w = may_change[i];
      if (!names.count(held[w].name) && at::equal(before[i], module.weights[w])) continue;
      changed.push_back(w);
      kept_buffers.push_back(before[i]);
    }
    may_change = std::move(changed);
    before = std::move(kept_buffers);
  }
  if (!before.empty()) WorkOf(index, microbatch).buffers = std::move(before);
  return outputs;
}

std::vector<c10::IValue> TorchStages::State::RunAgain(int index, int microbatch,
                                                      std::vector<c10::IValue> given, Kept* keep) {
  const Tensors before = std::exchange(WorkOf(index, microbatch).buffers, {});
  if (before.empty()) return RunModule(index, microbatch, std::move(given), keep);
  const LoadedModule& module = modules.at(index);
  const std::vector<size_t>& changed = changing.at(index);
  Tensors now;
  for (size_t i = 0; i < changed.size(); ++i) {
    now.push_back(module.weights[changed[i]].clone());
    Write(module.weights[changed[i]], before[i]);
  }
  std::vector<c10::IValue> outputs = RunModule(index, microbatch, std::move(given), keep);
  for (size_t i = 0; i < changed.size(); ++i) Write(module.weights[changed[i]], now[i]);
  return outputs;
}

void TorchStages::State::RecomputeStage(int stage, int microbatch) {
  auto received = std::exchange(under_way[{stage, microbatch}].received, std::nullopt);
  if (!received) return;
  std::vector<c10::IValue> values(manifest.values.size());
  for (auto& [id, received_value] : *received) values[id] = std::move(received_value);
  received.reset();
  RunModules(stage, microbatch, values, true);
  ComputeLosses(stage, microbatch, values, true);
}

Kept TorchStages::State::TakeKept(int index, int microbatch) {
  ModuleWork& work = WorkOf(index, microbatch);
  if (auto inputs = std::exchange(work.inputs, std::nullopt)) {
    Kept keep;
    RunAgain(index, microbatch, *std::move(inputs), &keep);
    return keep;
  }
  return std::exchange(work.kept, {});
}

}  // namespace pipewright
