// Problems of tuning for chains of modules.
#pragma once
#include <string>
#include <vector>

#include "plan/tune/problem.h"

namespace pipewright {

// A chain of modules in a package whose inputs take no gradient.
inline Manifest Chain(int modules) {
  Manifest manifest;
  for (int m = 0; m <= modules; ++m) {
    ValueInfo value;
    value.name = "v" + std::to_string(m);
    value.producer = m - 1;
    value.gradient = m > 0;
    if (m < modules) value.consumers = {m};
    manifest.values.push_back(value);
  }
  manifest.inputs = {0};
  manifest.outputs = {modules};
  for (int m = 0; m < modules; ++m) {
    ModuleInfo module;
    module.name = "module" + std::to_string(m);
    module.inputs = {m};
    module.outputs = {m + 1};
    manifest.modules.push_back(module);
  }
  return manifest;
}

// A microbatch of `size` samples costs a fixed time and a time per sample.
inline Profile ProfileOf(const std::vector<double>& work, int64_t size) {
  constexpr double kFixed = 1e-4, kKept = 1e6, kMessage = 1e4;
  Profile profile;
  profile.microbatch = size;
  profile.values.push_back({"v0", -1, {0}, 0});
  for (size_t m = 0; m < work.size(); ++m) {
    const double time = kFixed + work[m] * static_cast<double>(size);
    ProfileNode node;
    node.name = "module" + std::to_string(m);
    node.module = static_cast<int>(m);
    node.forward.median = time;
    node.backward.median = 2 * time;
    node.input_gradient.median = node.weight_gradient.median = time;
    node.kept = kKept * static_cast<double>(size);
    profile.nodes.push_back(node);
    ProfileValue value{"v" + std::to_string(m + 1), static_cast<int>(m), {}, kMessage, true};
    if (m + 1 < work.size()) value.consumers = {static_cast<int>(m) + 1};
    profile.values.push_back(value);
  }
  return profile;
}

inline TuneProblem ProblemOf(const std::vector<double>& work, int64_t samples) {
  TuneProblem problem;
  problem.manifest = Chain(static_cast<int>(work.size()));
  problem.samples = samples;
  for (int ranks : {1, 2, 4})
    for (int64_t size = 1; size <= samples; size *= 2)
      problem.profiles.push_back({ranks, ProfileOf(work, size)});
  return problem;
}

}  // namespace pipewright
