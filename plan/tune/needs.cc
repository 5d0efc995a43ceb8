#include "plan/tune/needs.h"

#include <algorithm>
#include <cmath>

namespace pipewright {

namespace {

bool FitsWith(TuneProblem problem, double memory) {
  problem.memory = memory;
  return !SearchTune(problem, 1).best.empty();
}

double LeastMemory(const TuneProblem& problem) {
  constexpr double kPrecision = 1.01;
  const TuneResult result = SearchTune(problem, 1);
  if (result.large.empty() || !FitsWith(problem, kNoLimit)) return 0;
  double enough = std::ceil(LargestPeak(result.large.front())), less = problem.memory;
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
  // A machine beyond those that are described has no memory that is known.
  if (!problem.machines.memory.empty()) return 0;
  int less = 0;
  for (const TuneProfile& profile : problem.profiles) less = std::max(less, profile.ranks);
  const int modules = static_cast<int>(problem.manifest.modules.size());
  auto fits = [&](int ranks) { return FitsWith(OnRanks(problem, ranks), problem.memory); };
  int enough = less;
  do {
    if (enough >= modules) return 0;
    less = enough;
    enough = std::min(2 * enough, modules);
  } while (!fits(enough));
  while (enough > less + 1) {
    const int between = (enough + less) / 2;
    (fits(between) ? enough : less) = between;
  }
  return enough;
}

}  // namespace

TuneNeeds FindNeeds(const TuneProblem& problem) {
  return {LeastMemory(problem), FewestRanks(problem)};
}

}  // namespace pipewright
