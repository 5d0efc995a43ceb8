#include "plan/partition/io/measured_links.h"

#include <algorithm>
#include <map>
#include <utility>

namespace pipewright {

namespace {

struct Pair {
  int one = 0, other = 0;
  double bandwidth = 0, spread = 0;
};

// Returns the pairs by bandwidth, ascending.
std::vector<Pair> PairsOf(const std::vector<ProfileLink>& links) {
  std::map<std::pair<int, int>, Pair> pairs;
  for (const ProfileLink& link : links) {
    const auto [one, other] = std::minmax(link.from, link.to);
    auto [found, fresh] = pairs.try_emplace({one, other}, Pair{one, other});
    Pair& pair = found->second;
    pair.bandwidth =
        fresh ? link.bytes_per_second : std::min(pair.bandwidth, link.bytes_per_second);
    pair.spread = std::max(pair.spread, link.spread);
  }
  std::vector<Pair> sorted;
  for (const auto& [ends, pair] : pairs) sorted.push_back(pair);
  std::stable_sort(sorted.begin(), sorted.end(),
                   [](const Pair& a, const Pair& b) { return a.bandwidth < b.bandwidth; });
  return sorted;
}

}  // namespace

MeasuredLinks FiguresOf(const std::vector<ProfileLink>& links) {
  std::vector<Pair> pairs = PairsOf(links);
  for (size_t begin = 0, end = 0; begin < pairs.size(); begin = end) {
    const Pair& first = pairs[begin];
    double spread = first.spread;
    for (end = begin + 1; end < pairs.size(); ++end) {
      spread = std::max(spread, pairs[end].spread);
      if (pairs[end].bandwidth - first.bandwidth > spread) break;
    }
    const double middle = pairs[begin + (end - begin) / 2].bandwidth;
    for (size_t i = begin; i < end; ++i) pairs[i].bandwidth = middle;
  }
  MeasuredLinks figures;
  figures.bandwidth = pairs[pairs.size() / 2].bandwidth;
  std::vector<double> latencies;
  size_t ranks = 0;
  for (const ProfileLink& link : links) {
    latencies.push_back(link.latency);
    ranks = std::max({ranks, static_cast<size_t>(link.from) + 1, static_cast<size_t>(link.to) + 1});
  }
  const auto middle = latencies.begin() + static_cast<std::ptrdiff_t>(latencies.size() / 2);
  std::nth_element(latencies.begin(), middle, latencies.end());
  figures.latency = *middle;
  if (pairs.front().bandwidth == pairs.back().bandwidth || pairs.size() != ranks * (ranks - 1) / 2)
    return figures;
  figures.pairs.assign(ranks, std::vector<double>(ranks, figures.bandwidth));
  for (const Pair& pair : pairs)
    figures.pairs[static_cast<size_t>(pair.one)][static_cast<size_t>(pair.other)] =
        figures.pairs[static_cast<size_t>(pair.other)][static_cast<size_t>(pair.one)] =
            pair.bandwidth;
  return figures;
}

}  // namespace pipewright
