#include "plan/partition/exact/ideals.h"

#include <algorithm>
#include <chrono>

namespace pipewright {

static double WorkOf(const Unit& unit) { return unit.device_ok ? unit.device_time : 0; }

// Adds the sums of a set, computed from those of the set without `unit`.
static void AddSums(const UnitGraph& graph, Ideals& ideals, const Ideals::Smaller& link) {
  double time = ideals.cut_time[link.set], transfers = ideals.cut_transfers[link.set];
  for (int n : graph.nets_of[link.unit]) {
    const Net& net = graph.nets[n];
    size_t inside = 0;
    for (int u : net.units) inside += Has(ideals.sets[link.set], u);
    if (inside == 0) time += net.time, transfers += net.transfers;
    if (inside + 1 == net.units.size()) time -= net.time, transfers -= net.transfers;
  }
  ideals.work.push_back(ideals.work[link.set] + WorkOf(graph.units[link.unit]));
  ideals.cut_time.push_back(std::max(0.0, time));
  ideals.cut_transfers.push_back(transfers);
}

namespace {

// A hash table of sets. The hash of a set is updated with one number per unit.
struct SetTable {
  std::vector<int> slots = std::vector<int>(1024, -1);
  std::vector<uint64_t> hashes;  // by set

  static uint64_t Of(int unit) {
    uint64_t h = (static_cast<uint64_t>(unit) + 1) * 0x9e3779b97f4a7c15ull;
    h = (h ^ (h >> 32)) * 0xff51afd7ed558ccdull;
    return h ^ (h >> 29);
  }

  // Returns the slot of the set with that hash for which `same` returns true, or a free one.
  template <typename Same>
  int& Find(uint64_t hash, Same same) {
    if (2 * hashes.size() > slots.size()) Grow();
    size_t mask = slots.size() - 1, at = hash & mask;
    while (slots[at] >= 0 && !(hashes[slots[at]] == hash && same(slots[at]))) at = (at + 1) & mask;
    return slots[at];
  }

  void Grow() {
    std::vector<int> larger(2 * slots.size(), -1);
    for (int set : slots) {
      if (set < 0) continue;
      size_t at = hashes[set] & (larger.size() - 1);
      while (larger[at] >= 0) at = (at + 1) & (larger.size() - 1);
      larger[at] = set;
    }
    slots.swap(larger);
  }
};

}  // namespace

bool EnumerateIdeals(const UnitGraph& graph, int64_t max_sets, double max_seconds, Ideals& ideals) {
  auto start = std::chrono::steady_clock::now();
  auto late = [&] {
    return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count() >
           max_seconds;
  };
  int n = static_cast<int>(graph.units.size());
  // If r units may all be added next, there are at least 2^r sets.
  size_t most_ready = 0;
  while (int64_t{1} << most_ready <= max_sets && most_ready < 62) ++most_ready;
  ideals = Ideals();
  ideals.sets.push_back(MakeBits(n));
  ideals.work = ideals.cut_time = ideals.cut_transfers = {0};
  SetTable table;
  table.hashes.push_back(0);
  std::vector<Ideals::Smaller> made_of(1);             // by set: how it was first made
  std::vector<std::pair<int, Ideals::Smaller>> links;  // (larger set, how it was made)
  // The units that may be added to each set of the last level.
  std::vector<std::vector<int>> ready(1), next_ready;
  for (int u = n - 1; u >= 0; --u)
    if (graph.next[u].empty()) ready[0].push_back(u);
  if (ready[0].size() >= most_ready) return false;
  for (size_t begin = 0, end = 1; begin < end; begin = end, end = ideals.sets.size()) {
    next_ready.clear();
    for (size_t s = begin; s < end; ++s) {
      Bits set = ideals.sets[s];
      const std::vector<int>& units = ready[s - begin];
      for (int u : units) {
        Insert(set, u);
        const uint64_t hash = table.hashes[s] ^ SetTable::Of(u);
        int& place = table.Find(hash, [&](int other) { return ideals.sets[other] == set; });
        const bool added = place < 0;
        if (added) place = static_cast<int>(ideals.sets.size());
        Ideals::Smaller link{static_cast<int>(s), u};
        links.push_back({place, link});
        if (added) {
          ideals.sets.push_back(set);
          table.hashes.push_back(hash);
          made_of.push_back(link);
          next_ready.emplace_back();
          std::vector<int>& more = next_ready.back();
          for (int other : units)
            if (other != u) more.push_back(other);
          for (int before : graph.previous[u])
            if (std::all_of(graph.next[before].begin(), graph.next[before].end(),
                            [&](int after) { return Has(set, after); }))
              more.push_back(before);
          if (more.size() >= most_ready) return false;
        }
        Erase(set, u);
      }
      if (static_cast<int64_t>(ideals.sets.size()) > max_sets) return false;
      if (static_cast<int64_t>(links.size()) > 8 * max_sets) return false;
      if (s % 256 == 0 && late()) return false;
    }
    ready.swap(next_ready);
  }
  for (size_t s = 1; s < ideals.sets.size(); ++s) AddSums(graph, ideals, made_of[s]);
  ideals.first.assign(ideals.sets.size() + 1, 0);
  for (const auto& link : links) ++ideals.first[link.first + 1];
  for (size_t s = 0; s < ideals.sets.size(); ++s) ideals.first[s + 1] += ideals.first[s];
  ideals.smaller.resize(links.size());
  std::vector<int> fill(ideals.first.begin(), ideals.first.end() - 1);
  for (const auto& link : links) ideals.smaller[fill[link.first]++] = link.second;
  return true;
}

}  // namespace pipewright
