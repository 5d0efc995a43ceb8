#include "runtime/stage/gradient_sums.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <set>

#include "runtime/exec/reduce.h"

namespace pipewright {

// Two modules, the first on three ranks; "tied" is in both.
static Manifest Example() {
  Manifest m;
  m.modules.resize(2);
  m.modules[0].held = {{"a", WeightKind::kParameter, "float32", {5, 3}, true, true},
                       {"tied", WeightKind::kParameter, "float32", {4}, true, true},
                       {"frozen", WeightKind::kParameter, "float32", {4}, false, true},
                       {"b", WeightKind::kParameter, "float32", {7}, true, true}};
  m.modules[1].held = {{"tied", WeightKind::kParameter, "float32", {4}, true, true}};
  m.shared = {{{{0, "tied"}, {1, "tied"}}}};
  return m;
}
static const Conf kConf{{0, 1}, false, {{2, 0, 1}, {3}}, {}};

TEST(GradientGroups, CoverEveryWeightOnceAndTakeTurns) {
  GradientGroups groups = MakeGradientGroups(Example(), kConf, {.microbatches = 4, .bucket_bytes = 32});
  ASSERT_EQ(groups.exchanges.size(), 1u + 3u);  // 22 floats, 8 per bucket
  EXPECT_EQ(groups.contents[0].terms.size(), 2u);
  std::vector<int> owners;
  std::set<std::pair<size_t, int64_t>> covered;
  for (size_t g = 1; g < 4; ++g) {
    owners.push_back(OwnerOf(groups.exchanges[g]));
    for (const WeightSlice& slice : groups.contents[g].terms[0])
      for (int64_t i = slice.begin; i < slice.begin + slice.count; ++i)
        EXPECT_TRUE(covered.emplace(slice.weight, i).second);
  }
  EXPECT_EQ(owners, (std::vector<int>{2, 0, 1}));
  EXPECT_EQ(covered.size(), 15u + 7u);
}

// Does what the executor does: adds in the order of the holders, then distributes the sum.
static void Exchange(std::map<int, GradientSums*>& ranks, int group) {
  const SharedGroup& holders = ranks.begin()->second->exchanges()[group];
  Bundle sum, part;
  for (size_t h = 0; h < holders.size(); ++h) {
    if (!holders[h].gives) continue;
    Bundle given = ranks.at(holders[h].rank)->Scratch(group, nullptr);
    GradientSums::CopyTo(given, ranks.at(holders[h].rank)->Gradient(group, static_cast<int>(h)));
    if (h > 0 && holders[h].term != holders[h - 1].term) {
      if (sum.owner)
        GradientSums::AddTo(sum, part);
      else
        sum = part;
      part = {};
    }
    if (part.owner)
      GradientSums::AddTo(part, given);
    else
      part = given;
  }
  if (sum.owner)
    GradientSums::AddTo(sum, part);
  else
    sum = part;
  for (size_t h = 0; h < holders.size(); ++h)
    if (holders[h].gets)
      GradientSums::CopyTo(ranks.at(holders[h].rank)->Gradient(group, static_cast<int>(h)), sum);
}

static Tensors Given(int module, int microbatch) {
  at::manual_seed(static_cast<uint64_t>(10 * module + microbatch));
  Tensors found;
  const Manifest manifest = Example();
  for (const WeightInfo& weight : manifest.modules[module].held)
    found.push_back(weight.requires_grad ? at::randn(weight.shape) : at::Tensor());
  if (microbatch == 1) found[0].reset();  // no loss reaches it
  if (module == 0) found[3].reset();      // nor this one, ever
  return found;
}

static Tensors Sums(bool exact, const Conf& conf, int microbatches, std::vector<int> order,
                    int module) {
  Manifest manifest = Example();
  std::map<int, std::unique_ptr<GradientSums>> own;
  std::map<int, GradientSums*> ranks;
  std::map<int, int> announced;
  for (int m = 0; m < 2; ++m)
    for (int rank : conf.stage_to_ranks[conf.module_to_stage[m]]) {
      if (!own[rank]) {
        own[rank] = std::make_unique<GradientSums>(
            manifest, conf, rank, at::Device(at::kCPU),
            GradientOptions{.microbatches = microbatches, .exact = exact, .bucket_bytes = 32});
        own[rank]->OnReady([&announced](int group) { ++announced[group]; });
      }
      Tensors weights;
      for (const WeightInfo& weight : manifest.modules[m].held)
        weights.push_back(at::zeros(weight.shape));
      own[rank]->Hold(m, weights);
      ranks[rank] = own[rank].get();
    }
  for (int i : order)
    for (int m : {1, 0}) {
      const std::vector<int>& replicas = conf.stage_to_ranks[conf.module_to_stage[m]];
      ranks.at(replicas[static_cast<size_t>(i) % replicas.size()])->Add(m, i, Given(m, i));
    }
  const std::vector<SharedGroup>& groups = ranks.begin()->second->exchanges();
  for (size_t g = 0; g < groups.size(); ++g) {
    // Each rank that contributes has announced once that its part is complete.
    std::set<int> gives;
    for (const SharedHolder& holder : groups[g])
      if (holder.gives) gives.insert(holder.rank);
    if (microbatches >= 3) {
      EXPECT_EQ(announced[static_cast<int>(g)], static_cast<int>(gives.size())) << g;
    }
    Exchange(ranks, static_cast<int>(g));
  }
  Tensors first;
  for (int rank : conf.stage_to_ranks[conf.module_to_stage[module]]) {
    Tensors sums = ranks.at(rank)->Take(module);
    if (first.empty()) first = sums;
    for (size_t w = 0; w < sums.size(); ++w) {
      EXPECT_EQ(sums[w].defined(), first[w].defined()) << w;
      if (sums[w].defined()) {
        EXPECT_TRUE(at::equal(sums[w], first[w])) << w;
      }
    }
  }
  return first;
}

TEST(GradientSums, ExactSumsHaveTheBitsOfOneRankInAnyOrder) {
  const Conf alone{{0, 0}, false, {{0}}, {}};
  for (int microbatches : {2, 7}) {
    std::vector<int> forward, backward;
    for (int i = 0; i < microbatches; ++i)
      forward.push_back(i), backward.insert(backward.begin(), i);
    for (int module : {0, 1}) {
      Tensors expected = Sums(false, alone, microbatches, forward, module);
      for (const Conf& conf : {kConf, alone})
        for (const std::vector<int>& order : {forward, backward}) {
          Tensors found = Sums(true, conf, microbatches, order, module);
          Tensors fast = Sums(false, conf, microbatches, order, module);
          for (size_t w = 0; w < found.size(); ++w) {
            ASSERT_EQ(found[w].defined(), expected[w].defined()) << w;
            ASSERT_EQ(fast[w].defined(), expected[w].defined()) << w;
            if (!found[w].defined()) continue;
            EXPECT_TRUE(at::equal(found[w], expected[w])) << w;
            EXPECT_TRUE(at::allclose(fast[w], expected[w], 1e-5, 1e-5)) << w;
          }
        }
    }
  }
}

}  // namespace pipewright
