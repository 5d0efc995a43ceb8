// Compares sums over ranks with additions one after the other.
#include "runtime/exec/reduce.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <memory>
#include <random>
#include <vector>

#include "runtime/transport/thread_transport.h"

namespace pipewright {
namespace {

// A body with one float per group and holder, after a weight without elements. Nothing but sums is
// ever asked of it.
class Floats : public StageBody {
 public:
  explicit Floats(const std::vector<std::vector<float>>& start) : values(start) {}
  Bundle Gradient(int group, int holder) override {
    float* at = &values[static_cast<size_t>(group)][static_cast<size_t>(holder)];
    return {{{nullptr, 0}, {at, sizeof(float)}}, std::shared_ptr<void>(at, [](void*) {})};
  }
  Bundle Scratch(int) override {
    auto memory = std::make_shared<float>(0.0f);
    return {{{nullptr, 0}, {memory.get(), sizeof(float)}}, memory};
  }
  void Add(const Bundle& into, const Bundle& from) override { At(into) += At(from); }
  void Copy(const Bundle& into, const Bundle& from) override { At(into) = At(from); }
  Bundle Allocate(int, int, bool, int, bool) override { return {}; }
  std::vector<Bundle> Forward(int, int, std::vector<Bundle>) override { return {}; }
  std::vector<Bundle> Backward(ActionKind, int, int, std::vector<Bundle>) override { return {}; }
  void Step(int) override {}

  std::vector<std::vector<float>> values;  // [group][holder]

 private:
  static float& At(const Bundle& bundle) { return *static_cast<float*>(bundle.regions[1].data); }
};

// Adds in the order of the holders, as a single process would: holders of one term first.
float Sum(const SharedGroup& group, const std::vector<float>& values) {
  std::vector<float> terms;
  int last = -1;
  for (size_t h = 0; h < group.size(); ++h) {
    if (!group[h].gives) continue;
    if (group[h].term == last && !terms.empty())
      terms.back() += values[h];
    else
      terms.push_back(values[h]);
    last = group[h].term;
  }
  float sum = terms[0];
  for (size_t t = 1; t < terms.size(); ++t) sum += terms[t];
  return sum;
}

// Floats of very different sizes make sums that depend on the order of additions.
TEST(SharedReducer, AddsInTheOrderOfTheHolders) {
  for (unsigned seed = 0; seed < 40; ++seed) {
    std::mt19937 random(seed);
    auto below = [&](int n) { return static_cast<int>(random() % static_cast<unsigned>(n)); };
    const int ranks = 1 + below(4);
    std::vector<SharedGroup> groups(static_cast<size_t>(1 + below(4)));
    std::vector<std::vector<float>> start;
    for (SharedGroup& group : groups) {
      const int holders = 2 + below(5);
      std::vector<float> values;
      int term = 0;
      for (int h = 0; h < holders; ++h) {
        SharedHolder holder;
        holder.stage = h, holder.rank = below(ranks), holder.term = term;
        holder.gives = h == 0 || below(4) > 0, holder.gets = below(4) > 0;
        term += below(2);
        group.push_back(holder);
        values.push_back(std::ldexp(static_cast<float>(below(1000) - 500), below(40) - 20));
      }
      if (below(2)) group[static_cast<size_t>(below(holders))].sums = true;
      start.push_back(values);
    }
    const bool early = below(2);
    RunThreads(ranks, [&](Transport& t) {
      Floats body(start);
      SharedReducer reducer(groups, body, t, 5, [&](const Token& token, int rank) {
        t.WaitFor(token, {Awaited::kSharedWeight, rank});
      });
      for (size_t g = 0; g < groups.size(); ++g) {
        if (std::none_of(groups[g].begin(), groups[g].end(),
                         [&](const SharedHolder& h) { return h.rank == t.rank(); }))
          continue;
        if (early) reducer.BeginEarly(static_cast<int>(g));
        reducer.Advance();
        reducer.Begin(static_cast<int>(g));
      }
      reducer.Finish();
      for (size_t g = 0; g < groups.size(); ++g)
        for (size_t h = 0; h < groups[g].size(); ++h) {
          if (groups[g][h].rank != t.rank() || !groups[g][h].gets) continue;
          EXPECT_EQ(body.values[g][h], Sum(groups[g], start[g]))
              << "seed " << seed << ", group " << g << ", holder " << h;
        }
      t.AllGather("");
    });
  }
}

}  // namespace
}  // namespace pipewright
