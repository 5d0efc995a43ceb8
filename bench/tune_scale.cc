// Measures processor time and memory of the search of `pipewright tune`, without measuring modules:
// for a chain of unequal modules, on every number of ranks and with every size of microbatches.
//   tune_scale                              prints a table
//   tune_scale MODULES RANKS SAMPLES [BYTES]   prints one row, with a limit of memory
#include <sys/resource.h>

#include <cstdio>
#include <cstdlib>
#include <ctime>
#include <random>
#include <string>

#include "plan/tune/search.h"

using namespace pipewright;

namespace {

Manifest Chain(int modules) {
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

Profile ProfileOf(int modules, int64_t size) {
  std::mt19937 random(1);
  Profile profile;
  profile.microbatch = size;
  profile.values.push_back({"v0", -1, {0}, 0});
  for (int m = 0; m < modules; ++m) {
    const double time = 1e-5 + std::uniform_real_distribution<double>(1e-4, 1e-3)(random) *
                                   static_cast<double>(size);
    ProfileNode node;
    node.name = "module" + std::to_string(m);
    node.module = m;
    node.forward.median = node.input_gradient.median = node.weight_gradient.median = time;
    node.backward.median = 2 * time;
    node.kept = 1e6 * static_cast<double>(size);
    node.parameters = node.trained = 1e6;
    profile.nodes.push_back(node);
    ProfileValue value{"v" + std::to_string(m + 1), m, {}, 1e4 * static_cast<double>(size), true};
    if (m + 1 < modules) value.consumers = {m + 1};
    profile.values.push_back(value);
  }
  return profile;
}

void Row(int modules, int ranks, int microbatches, double memory) {
  TuneProblem problem;
  problem.manifest = Chain(modules);
  problem.samples = microbatches;
  problem.memory = memory;
  problem.alike = 2;
  for (int count = 1; count <= ranks; count *= 2)
    for (int64_t size = 1; size <= microbatches; size *= 2)
      problem.profiles.push_back({count, ProfileOf(modules, size)});
  const std::clock_t start = std::clock();
  const TuneResult found = SearchTune(problem, 5);
  // Under a limit, tune searches again for modules that compute with autograd.
  if (memory < kNoLimit && !found.best.empty()) SearchTune(problem, 5, found.best.front().step);
  rusage usage{};
  getrusage(RUSAGE_SELF, &usage);
  std::printf("%7d %6d %7d %8s %9d %7d %5d %8.1f %8ld  %s\n", modules, ranks, microbatches,
              memory == kNoLimit ? "no" : "yes", found.simulated, found.pruned, found.over,
              static_cast<double>(std::clock() - start) / CLOCKS_PER_SEC, usage.ru_maxrss / 1024,
              found.best.empty() ? "none" : found.best[0].schedule.c_str());
  std::fflush(stdout);
}

}  // namespace

int main(int argc, char** argv) {
  std::printf("%7s %6s %7s %8s %9s %7s %5s %8s %8s  %s\n", "modules", "ranks", "samples", "limited",
              "simulated", "pruned", "over", "seconds", "MB", "best");
  if (argc > 4) {
    Row(std::atoi(argv[1]), std::atoi(argv[2]), std::atoi(argv[3]), std::atof(argv[4]));
  } else if (argc > 3) {
    Row(std::atoi(argv[1]), std::atoi(argv[2]), std::atoi(argv[3]), kNoLimit);
  } else {
    Row(100, 64, 128, kNoLimit);
    Row(100, 64, 128, 30e6);
    Row(1000, 512, 1024, kNoLimit);
    Row(1000, 512, 1024, 60e6);
  }
}
