// Versioned weights for plans whose steps overlap: a microbatch uses the same weights forward and
// backward, while steps of other minibatches create new ones.
#include <ATen/ATen.h>

#include "base/error.h"
#include "plan/run/run_plan.h"
#include "runtime/stage/stage_state.h"

namespace pipewright {

// Makes the stage's modules run with this version of the weights.
void TorchStages::State::Hold(int stage, int version) {
  StageVersions& slots = versions[stage];
  if (slots.current == version) return;
  auto found = slots.weights.find(version);
  if (found == slots.weights.end())
    throw Error("weight version " + std::to_string(version),
                "is not kept: the stage has made " + std::to_string(slots.steps) + " steps");
  for (const auto& [index, weights] : found->second) {
    LoadedModule& module = modules.at(index);
    const std::vector<WeightInfo>& held = manifest.modules[index].held;
    for (size_t w = 0; w < weights.size(); ++w) {
      if (module.weights[w].is_same(weights[w])) continue;
      module.weights[w] = weights[w];
      module.self->setAttr(held[w].name, weights[w]);
    }
  }
  slots.current = version;
}

// Creates the slot that the next step changes, as a copy of the newest, or reuses that one if no
// microbatch needs it again.
void TorchStages::State::MakeVersion(int stage) {
  StageVersions& slots = versions[stage];
  const int newest = slots.steps++;
  auto kept = [&](int version) {
    return slots.users[version] > 0 || slots.steps - version <= OlderVersions(job);
  };
  std::map<int, Tensors> next = slots.weights.at(newest);
  for (auto& [index, weights] : next) {
    if (!kept(newest)) break;
    for (size_t w = 0; w < weights.size(); ++w) {
      if (!weights[w].requires_grad()) continue;
      weights[w] = weights[w].detach().clone().set_requires_grad(true);
      updater.Replace(index, w, weights[w]);
    }
  }
  slots.weights[slots.steps] = std::move(next);
  std::erase_if(slots.weights,
                [&](const auto& slot) { return slot.first < slots.steps && !kept(slot.first); });
  std::erase_if(slots.users, [](const auto& slot) { return slot.second == 0; });
  Hold(stage, slots.steps);
  updater.Begin(step + newest, job.microbatches);
}

void TorchStages::UseVersion(int stage, int version) {
  State& s = *state_;
  StageVersions& slots = s.versions[stage];
  if (slots.weights.empty()) {
    for (int index : s.modules_of[stage]) slots.weights[0][index] = s.modules.at(index).weights;
    slots.current = 0;
  }
  s.Hold(stage, version);
}

}  // namespace pipewright
