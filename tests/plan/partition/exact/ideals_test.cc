#include "plan/partition/exact/ideals.h"

#include <gtest/gtest.h>

#include <random>
#include <set>

#include "tests/plan/partition/brute_force.h"

namespace pipewright {
namespace {

// Returns the sets that hold, with a unit, everything after it.
std::set<Bits> AllIdeals(const UnitGraph& graph) {
  std::set<Bits> all;
  int n = static_cast<int>(graph.units.size());
  for (uint64_t mask = 0; mask < uint64_t{1} << n; ++mask) {
    bool closed = true;
    for (int u = 0; u < n; ++u)
      for (int after : graph.next[u]) closed = closed && (!(mask >> u & 1) || mask >> after & 1);
    if (closed) all.insert(Bits(MakeBits(n).size(), mask));
  }
  return all;
}

int Size(const Bits& set) {
  int size = 0;
  ForEach(set, [&](int) { ++size; });
  return size;
}

TEST(Ideals, AreAllSetsClosedUnderSuccessors) {
  for (unsigned seed = 0; seed < 100; ++seed) {
    std::mt19937 random(seed);
    UnitGraph graph = BuildUnits(RandomProblem(random, 6, seed % 2 ? 4 : 0), Merge::kNone);
    const std::set<Bits> expected = AllIdeals(graph);
    int64_t count = static_cast<int64_t>(expected.size());
    Ideals ideals;
    ASSERT_TRUE(EnumerateIdeals(graph, count, kInfinity, ideals)) << seed;
    EXPECT_EQ(std::set<Bits>(ideals.sets.begin(), ideals.sets.end()), expected) << seed;
    EXPECT_EQ(ideals.sets.size(), expected.size()) << seed;
    EXPECT_EQ(Size(ideals.sets.back()), static_cast<int>(graph.units.size()));
    for (size_t s = 1; s < ideals.sets.size(); ++s)
      EXPECT_LE(Size(ideals.sets[s - 1]), Size(ideals.sets[s])) << seed;
    EXPECT_FALSE(EnumerateIdeals(graph, count - 1, kInfinity, ideals)) << seed;
  }
}

TEST(Ideals, SumTheirWorkAndTheirCut) {
  for (unsigned seed = 0; seed < 100; ++seed) {
    std::mt19937 random(seed);
    UnitGraph graph = BuildUnits(RandomProblem(random, 6, 2), Merge::kNone);
    Ideals ideals;
    ASSERT_TRUE(EnumerateIdeals(graph, 1000, kInfinity, ideals));
    for (size_t s = 0; s < ideals.sets.size(); ++s) {
      double work = 0, time = 0, transfers = 0;
      ForEach(ideals.sets[s], [&](int u) {
        if (graph.units[u].device_ok) work += graph.units[u].device_time;
      });
      for (const Net& net : graph.nets) {
        size_t inside = 0;
        for (int u : net.units) inside += Has(ideals.sets[s], u);
        if (inside > 0 && inside < net.units.size()) time += net.time, transfers += net.transfers;
      }
      EXPECT_NEAR(ideals.work[s], work, 1e-9) << seed;
      EXPECT_NEAR(ideals.cut_time[s], time, 1e-9) << seed;
      EXPECT_NEAR(ideals.cut_transfers[s], transfers, 1e-9) << seed;
    }
  }
}

TEST(Ideals, ListTheSetsThatLackOneUnit) {
  for (unsigned seed = 0; seed < 50; ++seed) {
    std::mt19937 random(seed);
    UnitGraph graph = BuildUnits(RandomProblem(random, 6, 0), Merge::kNone);
    Ideals ideals;
    ASSERT_TRUE(EnumerateIdeals(graph, 1000, kInfinity, ideals));
    const std::set<Bits> all(ideals.sets.begin(), ideals.sets.end());
    for (size_t s = 0; s < ideals.sets.size(); ++s) {
      std::set<int> listed, expected;
      for (int i = ideals.first[s]; i < ideals.first[s + 1]; ++i) {
        Bits smaller = ideals.sets[s];
        Erase(smaller, ideals.smaller[i].unit);
        EXPECT_EQ(ideals.sets[ideals.smaller[i].set], smaller) << seed;
        EXPECT_TRUE(listed.insert(ideals.smaller[i].unit).second) << seed;
      }
      ForEach(ideals.sets[s], [&](int u) {
        Bits smaller = ideals.sets[s];
        Erase(smaller, u);
        if (all.count(smaller)) expected.insert(u);
      });
      EXPECT_EQ(listed, expected) << seed;
    }
  }
}

}  // namespace
}  // namespace pipewright
