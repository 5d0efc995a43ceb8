#include "plan/tune/needs.h"

#include <algorithm>
#include <cmath>

namespace pipewright {

namespace {

bool FitsWith(TuneProblem problem, double memory) {
  problem.memory = memory;
  return AnyFits(problem);
}

double LeastMemory(const TuneProblem& problem) {
  constexpr double kPrecision = 1.01;
  const TuneResult result = SearchTune(problem, 1);
  if (result.large.empty() || !FitsWith(problem, kNoLimit)) return 0;
  double enough = std::ceil(LargestPeak(result.large.front())),
         less = problem.memory < kNoLimit ? problem.memory : 1;
  while (!FitsWith(problem, enough)) enough *= 2;
  if (less <= 0) less = 1;
  while (enough > kPrecision * less) {
    const double between = std::ceil(std::sqrt(enough * less));
    if (between >= enough) break;
    (FitsWith(problem, between) ? enough : less) = between;
  }
  return enough;
}

// Returns the problem with the profiles of its most ranks on another number of ranks.
TuneProblem OnRanks(const TuneProblem& problem, int ranks) {
  TuneProblem other = problem;
  int most = 0;
  for (const TuneProfile& profile : problem.profiles) most = std::max(most, profile.ranks);
  std::erase_if(other.profiles, [&](const TuneProfile& profile) { return profile.ranks < most; });
  for (TuneProfile& profile : other.profiles) profile.ranks = ranks;
  return other;
}

int FewestRanks(const TuneProblem& problem) {
  int less = 0;
  for (const TuneProfile& profile : problem.profiles) less = std::max(less, profile.ranks);
  const int most = MostRanks(problem);
  auto fits = [&](int ranks) { return FitsWith(OnRanks(problem, ranks), problem.memory); };
  int enough = less;
  do {
    if (enough >= most) return 0;
    less = enough;
    enough = std::min(2 * enough, most);
  } while (!fits(enough));
  while (enough > less + 1) {
    const int between = (enough + less) / 2;
    (fits(between) ? enough : less) = between;
  }
  return enough;
}

}  // namespace

int MostRanks(const TuneProblem& problem) {
  const auto modules = static_cast<int>(problem.manifest.modules.size());
  const auto devices = static_cast<int>(problem.machines.memory.size());
  return devices > 0 ? std::min(modules, devices) : modules;
}

TuneNeeds FindNeeds(const TuneProblem& problem) {
  TuneNeeds needs = {LeastMemory(problem), FewestRanks(problem), false};
  if (needs.memory > 0 || problem.machines.memory.empty()) return needs;
  TuneProblem equal = problem;
  equal.machines.memory.clear();
  equal.memory = 1;
  return {LeastMemory(equal), needs.ranks, true};
}

}  // namespace pipewright
