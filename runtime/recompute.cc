// Modules that recompute their forward in the backward. The numbers are the same, because random
// ones depend on seed, step, microbatch and operation, and buffers are restored.
#include <ATen/ATen.h>

#include "runtime/stage_state.h"

namespace pipewright {

namespace {

// Keeps the version counter: tensors saved for another microbatch's backward stay valid.
void Write(const at::Tensor& to, const at::Tensor& from) {
  at::AutoDispatchBelowADInplaceOrView guard;
  to.copy_(from);
}

}  // namespace

// The first forward. Runs in gradient mode like the second, because kernels may differ without it.
std::vector<c10::IValue> TorchStages::State::RunForgetting(int index, int microbatch,
                                                           std::vector<c10::IValue> given) {
  const LoadedModule& module = modules.at(index);
  const std::vector<WeightInfo>& held = manifest.modules[index].held;
  // The first run shows which buffers forward changes.
  auto [found, first] = changing.try_emplace(index);
  if (first)
    for (size_t w = 0; w < held.size(); ++w)
      if (held[w].kind == "buffer") found->second.push_back(w);
  std::vector<size_t>& may_change = found->second;
  Tensors before;
  for (size_t w : may_change) before.push_back(module.weights[w].clone());
  if (!recomputed[settings.conf->module_to_stage[index]]) inputs[{index, microbatch}] = given;
  Kept forgotten;
  std::vector<c10::IValue> outputs = RunModule(index, microbatch, std::move(given), &forgotten);
  if (first) {
    std::vector<size_t> changed;
    Tensors kept_buffers;
    for (size_t i = 0; i < may_change.size(); ++i) {
      if (at::equal(before[i], module.weights[may_change[i]])) continue;
      changed.push_back(may_change[i]);
      kept_buffers.push_back(before[i]);
    }
    may_change = std::move(changed);
    before = std::move(kept_buffers);
  }
  if (!before.empty()) buffers[{index, microbatch}] = std::move(before);
  return outputs;
}

std::vector<c10::IValue> TorchStages::State::RunAgain(int index, int microbatch,
                                                      std::vector<c10::IValue> given, Kept* keep) {
  auto before = buffers.extract({index, microbatch});
  if (before.empty()) return RunModule(index, microbatch, std::move(given), keep);
  const LoadedModule& module = modules.at(index);
  const std::vector<size_t>& changed = changing.at(index);
  Tensors now;
  for (size_t i = 0; i < changed.size(); ++i) {
    now.push_back(module.weights[changed[i]].clone());
    Write(module.weights[changed[i]], before.mapped()[i]);
  }
  std::vector<c10::IValue> outputs = RunModule(index, microbatch, std::move(given), keep);
  for (size_t i = 0; i < changed.size(); ++i) Write(module.weights[changed[i]], now[i]);
  return outputs;
}

void TorchStages::State::RecomputeStage(int stage, int microbatch) {
  auto from = received.extract({stage, microbatch});
  if (from.empty()) return;
  std::vector<c10::IValue> values(manifest.values.size());
  for (auto& [id, received_value] : from.mapped()) values[id] = std::move(received_value);
  RunModules(stage, microbatch, values, true);
  ComputeLosses(stage, microbatch, values, true);
}

Kept TorchStages::State::TakeKept(int index, int microbatch) {
  if (auto from = inputs.extract({index, microbatch}); !from.empty()) {
    Kept keep;
    RunAgain(index, microbatch, std::move(from.mapped()), &keep);
    return keep;
  }
  return std::move(kept.extract({index, microbatch}).mapped());
}

}  // namespace pipewright
