#include "runtime/commands/sample.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <set>

#include "base/error.h"

namespace pipewright {

int64_t NextToken(std::vector<float> logits, const std::vector<int64_t>& text,
                  const SampleOptions& options, double random) {
  if (std::none_of(logits.begin(), logits.end(), [](float x) { return std::isfinite(x); }))
    throw Error("logits", "none of the " + std::to_string(logits.size()) + " is a finite number");
  for (float& x : logits)
    if (std::isnan(x)) x = -std::numeric_limits<float>::infinity();
  if (options.repetition_penalty != 1) {
    const float penalty = static_cast<float>(options.repetition_penalty);
    for (int64_t token : std::set<int64_t>(text.begin(), text.end())) {
      if (token < 0 || token >= static_cast<int64_t>(logits.size())) continue;
      float& x = logits[static_cast<size_t>(token)];
      x = x < 0 ? x * penalty : x / penalty;
    }
  }
  std::vector<size_t> order(logits.size());
  for (size_t i = 0; i < order.size(); ++i) order[i] = i;
  std::stable_sort(order.begin(), order.end(),
                   [&](size_t a, size_t b) { return logits[a] > logits[b]; });
  if (options.temperature <= 0) return static_cast<int64_t>(order[0]);
  if (options.top_k > 0 && static_cast<size_t>(options.top_k) < order.size()) {
    const float least = logits[order[static_cast<size_t>(options.top_k) - 1]];
    while (logits[order.back()] < least) order.pop_back();
  }
  std::vector<double> chance;
  double sum = 0;
  for (size_t i : order) {
    chance.push_back(
        std::exp((static_cast<double>(logits[i]) - logits[order[0]]) / options.temperature));
    sum += chance.back();
  }
  double kept = 0;
  size_t count = 0;
  while (count < order.size() && (count == 0 || kept < options.top_p * sum))
    kept += chance[count++];
  double at = random * kept;
  for (size_t i = 0; i < count; ++i)
    if ((at -= chance[i]) < 0) return static_cast<int64_t>(order[i]);
  return static_cast<int64_t>(order[count - 1]);
}

// Applies SplitMix64 (Steele, Lea, Flood, OOPSLA 2014) to the three.
double RandomOf(uint64_t seed, uint64_t row, uint64_t position) {
  uint64_t state = seed;
  uint64_t mixed = 0;
  for (uint64_t part : {row, position}) {
    state = (mixed ^ state) + 0x9e3779b97f4a7c15ull * (part + 1);
    mixed = state;
    mixed = (mixed ^ (mixed >> 30)) * 0xbf58476d1ce4e5b9ull;
    mixed = (mixed ^ (mixed >> 27)) * 0x94d049bb133111ebull;
    mixed ^= mixed >> 31;
  }
  return static_cast<double>(mixed >> 11) * 0x1p-53;
}

}  // namespace pipewright
