// Tests parts of a stage: the groups of its gradients, the buffers of its replicas, weights on
// disk.
#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include "runtime/exec/reduce.h"
#include "runtime/stage/gradient_groups.h"
#include "runtime/stage/replica_buffers.h"
#include "tests/error_text.h"
#include "tests/runtime/on_disk.h"

namespace pipewright {
namespace {

using Slices = std::vector<std::tuple<int, size_t, int64_t, int64_t>>;

Slices SlicesOf(const std::vector<WeightSlice>& slices) {
  Slices out;
  for (const WeightSlice& s : slices) out.emplace_back(s.module, s.weight, s.begin, s.count);
  return out;
}

// By holder: rank, term, whether it gives and gets, and its microbatch.
using Holders = std::vector<std::tuple<int, int, bool, bool, int>>;

Holders HoldersOf(const GradientGroups& groups, size_t group) {
  Holders out;
  for (size_t h = 0; h < groups.exchanges[group].size(); ++h) {
    const SharedHolder& holder = groups.exchanges[group][h];
    out.emplace_back(holder.rank, holder.term, holder.gives, holder.gets,
                     groups.contents[group].microbatch[h]);
  }
  return out;
}

TEST(GradientGroups, SharedWeightsComeFirstAndBucketsAreOfOneModule) {
  Manifest m;
  m.modules.resize(2);
  m.modules[0].held = {{"a", WeightKind::kParameter, "float32", {5}, true, true},
                       {"tied", WeightKind::kParameter, "float32", {2}, true, true},
                       {"frozen", WeightKind::kParameter, "float32", {9}, false, true},
                       {"half", WeightKind::kParameter, "bfloat16", {3}, true, true}};
  m.modules[1].held = {{"tied", WeightKind::kParameter, "float32", {2}, true, true},
                       {"alone", WeightKind::kParameter, "float32", {9}, true, true}};
  m.shared = {{{{0, "tied"}, {1, "tied"}}}};
  const Conf conf{{0, 1}, false, {{0, 1}, {2}}, {}};
  GradientGroups groups = MakeGradientGroups(m, conf, {.bucket_bytes = 8});
  ASSERT_EQ(groups.exchanges.size(), 1u + 4u);  // "alone" has no replica
  ASSERT_EQ(groups.contents.size(), groups.exchanges.size());
  ASSERT_EQ(groups.contents[0].terms.size(), 2u);
  EXPECT_EQ(SlicesOf(groups.contents[0].terms[0]), (Slices{{0, 1, 0, 2}}));
  EXPECT_EQ(SlicesOf(groups.contents[0].terms[1]), (Slices{{1, 0, 0, 2}}));
  EXPECT_EQ(HoldersOf(groups, 0),
            (Holders{{0, 0, true, true, -1}, {1, 0, true, true, -1}, {2, 1, true, true, -1}}));
  EXPECT_EQ(SlicesOf(groups.contents[1].terms[0]), (Slices{{0, 0, 0, 2}}));
  EXPECT_EQ(SlicesOf(groups.contents[2].terms[0]), (Slices{{0, 0, 2, 2}}));
  EXPECT_EQ(SlicesOf(groups.contents[3].terms[0]), (Slices{{0, 0, 4, 1}, {0, 3, 0, 2}}));
  EXPECT_EQ(SlicesOf(groups.contents[4].terms[0]), (Slices{{0, 3, 2, 1}}));
  for (size_t g = 1; g < 5; ++g) EXPECT_EQ(OwnerOf(groups.exchanges[g]), (g - 1) % 2);
  // One bucket if all fits.
  EXPECT_EQ(MakeGradientGroups(m, conf, {}).exchanges.size(), 2u);
  // Each replica gives each of its microbatches, in the order of all of them.
  groups = MakeGradientGroups(m, conf, {.microbatches = 3, .minibatches = 2, .exact = true});
  const Holders replicas = {{0, 0, true, false, 0},  {1, 0, true, false, 1}, {0, 0, true, false, 2},
                            {0, 0, true, false, 3},  {1, 0, true, false, 4}, {0, 0, true, false, 5},
                            {0, 0, false, true, -1}, {1, 0, false, true, -1}};
  EXPECT_EQ(HoldersOf(groups, 1), replicas);
  Holders shared = replicas;
  shared.emplace_back(2, 1, true, true, -1);
  EXPECT_EQ(HoldersOf(groups, 0), shared);
}

// Two replicas of one module see three microbatches, twice.
TEST(ReplicaBuffers, MergeAsOneRankWouldHaveComputed) {
  Manifest m;
  m.modules.resize(1);
  for (const BufferMerge merge : {BufferMerge::kUpdates, BufferMerge::kSum, BufferMerge::kMean,
                                  BufferMerge::kNone, BufferMerge::kMean})
    m.modules[0].held.push_back(
        {ToText(merge), WeightKind::kBuffer, "float32", {2}, false, true, -1, merge});
  m.modules[0].held[1].dtype = "int64";
  const Conf conf{{0}, false, {{1, 0}}, {}};  // rank 1 is the first replica
  auto update = [](int place) { return at::tensor({place + 0.25f, -place * 0.5f}); };
  at::Tensor statistics = at::tensor({1.f, 2.f});
  for (int step = 0; step < 2; ++step)
    for (int place = 0; place < 6; ++place) statistics = statistics * 0.875 + update(place);
  RunThreads(2, [&](Transport& transport) {
    const int replica = 1 - transport.rank();
    std::map<int, LoadedModule> modules;
    LoadedModule& module = modules[0];
    const at::Tensor table = at::tensor({0.1f, 0.7f});
    module.weights = {at::tensor({1.f, 2.f}), at::tensor({5, 6}, at::kLong), at::zeros({2}),
                      at::zeros({2}), table.clone()};
    module.kept_parts = {0.875, std::nullopt, std::nullopt, std::nullopt, std::nullopt};
    ReplicaBuffers buffers(m, conf, 3, 2, modules);
    for (int step = 0; step < 2; ++step) {
      for (int place = 0; place < 6; ++place) {
        if (place % 3 % 2 != replica) continue;
        buffers.Before(0);
        module.weights[0].mul_(0.875).add_(update(place));
        module.weights[1].add_(1);
        module.weights[2].fill_(10 + 6 * replica);
        module.weights[3].fill_(replica);
        buffers.After(0, place);
      }
      buffers.Merge(transport);
    }
    EXPECT_TRUE(at::allclose(module.weights[0], statistics, 1e-6, 1e-6));
    EXPECT_TRUE(at::equal(module.weights[1], at::tensor({17, 18}, at::kLong)));  // 12 microbatches
    // The first replica has two thirds of the microbatches.
    EXPECT_TRUE(at::allclose(module.weights[2], at::full({2}, 12.)));
    EXPECT_TRUE(at::equal(module.weights[3], at::full({2}, replica, at::kFloat)));
    EXPECT_TRUE(at::equal(module.weights[4], table));  // nobody wrote to it: the same bits
    const std::vector<std::string> all = transport.AllGather(std::string(
        static_cast<const char*>(module.weights[0].data_ptr()), module.weights[0].nbytes()));
    EXPECT_EQ(all[0], all[1]);
  });
}

TEST(OffloadedWeights, AreTensorsWhileTheirStageIsLoaded) {
  RunThreads(1, [](Transport& transport) {
    OnDisk disk("on_disk.pkg");
    OffloadedWeights weights = disk.Open(transport, {{0}, {1}});
    EXPECT_EQ(weights.bytes(), 24u);
    EXPECT_TRUE(weights.Offloads(1));
    EXPECT_FALSE(weights.Offloads(2));
    std::string bytes;
    weights.Read(1, 0, [&](std::string_view piece) { bytes += piece; });
    const float shift[3] = {4, 5, 6};
    EXPECT_EQ(bytes, std::string(reinterpret_cast<const char*>(shift), 12));
    const at::Tensor x = at::ones({2, 3});
    const at::NoGradGuard no_grad;
    for (int sweep = 0; sweep < 3; ++sweep) {
      weights.Load(0);
      weights.Load(1);
      EXPECT_EQ(disk.modules[0].weights[0].numel(), 0);
      weights.Bind(0);
      const at::Tensor y = pipewright::Run(disk.modules[0], {x})[0].toTensor();
      EXPECT_TRUE(at::equal(y, x * at::tensor({1.f, 2.f, 3.f})));
      // Values that share memory with the weights are copied.
      const at::Tensor view = disk.modules[0].weights[0].slice(0, 1);
      const at::Tensor kept = weights.Detached(0, view);
      ASSERT_NE(kept.data_ptr(), view.data_ptr());
      EXPECT_TRUE(weights.Detached(0, y).is_same(y));
      weights.Evict(0);
      EXPECT_TRUE(at::equal(kept, at::tensor({2.f, 3.f})));
      EXPECT_EQ(disk.modules[0].weights[0].numel(), 0);
      weights.Bind(1);
      // From the second sweep on, the weight is what the code has made of it.
      EXPECT_TRUE(
          at::equal(disk.modules[1].weights[0], at::tensor({4.f, 5.f, 6.f}) + (sweep > 0 ? 1 : 0)));
      EXPECT_EQ(weights.OnDisk(1, 0), sweep < 1);
      if (sweep == 0) disk.modules[1].weights[0].add_(1);
      weights.Evict(1);
    }
    EXPECT_TRUE(weights.OnDisk(0, 0));
    EXPECT_EQ(ErrorOf([&] { weights.Load(1); }),
              "stage 1: its weights are loaded or released out of order");
  });
}

TEST(OffloadedWeights, ATensorOfSeveralStagesIsReadOnce) {
  RunThreads(1, [](Transport& transport) {
    OnDisk other("two_tensors.pkg");
    EXPECT_NE(ErrorOf([&] { other.Open(transport, {{7}, {7}}); }).find("differs from its copy"),
              std::string::npos);
    OnDisk disk("one_tensor.pkg", {1, 2, 3});
    OffloadedWeights weights = disk.Open(transport, {{7}, {7}});
    EXPECT_EQ(weights.bytes(), 12u);
    weights.Load(0);
    weights.Load(1);
    weights.Bind(0);
    const void* at = disk.modules[0].weights[0].data_ptr();
    weights.Evict(0);
    weights.Bind(1);  // it stays until the last stage that uses it is evicted
    EXPECT_EQ(disk.modules[1].weights[0].data_ptr(), at);
    EXPECT_TRUE(at::equal(disk.modules[1].weights[0], at::tensor({1.f, 2.f, 3.f})));
    weights.Evict(1);
    std::filesystem::remove(disk.package + "/weights/module1.safetensors");
    const std::string error = ErrorOf([&] { disk.Open(transport, {{0}, {1}}); });
    EXPECT_NE(error.find("/weights/module1.safetensors"), std::string::npos) << error;
  });
}

}  // namespace
}  // namespace pipewright
