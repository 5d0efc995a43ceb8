#include "formats/weights/shard.h"

#include <gtest/gtest.h>

#include <numeric>
#include <random>

namespace pipewright {

using Counts = std::vector<size_t>;

TEST(Shard, EndsWhereTheNextTensorWouldNotFit) {
  EXPECT_EQ(SplitIntoShards({4, 4, 4}, 8), (Counts{2, 1}));
  EXPECT_EQ(SplitIntoShards({4, 5, 4}, 8), (Counts{1, 1, 1}));
  EXPECT_EQ(SplitIntoShards({8}, 8), (Counts{1}));
  EXPECT_EQ(SplitIntoShards({}, 8), (Counts{}));
}

TEST(Shard, ALargeTensorHasOneOfItsOwn) {
  EXPECT_EQ(SplitIntoShards({1, 100, 1, 1}, 8), (Counts{1, 1, 2}));
}

TEST(Shard, SizesNearTheLimitOf64BitsDoNotWrapAround) {
  const uint64_t huge = ~uint64_t{0} - 1;
  EXPECT_EQ(SplitIntoShards({huge, huge}, huge), (Counts{1, 1}));
}

TEST(Shard, EveryTensorOnceAndNoShardOverTheLimit) {
  std::mt19937 random(1);
  for (int round = 0; round < 200; ++round) {
    std::vector<uint64_t> sizes(random() % 30);
    for (uint64_t& size : sizes) size = random() % 20;
    const uint64_t limit = 1 + random() % 40;
    const Counts counts = SplitIntoShards(sizes, limit);
    ASSERT_EQ(std::accumulate(counts.begin(), counts.end(), size_t{0}), sizes.size());
    size_t next = 0;
    for (size_t count : counts) {
      ASSERT_GT(count, 0u);
      uint64_t sum = 0;
      for (size_t i = 0; i < count; ++i) sum += sizes[next++];
      EXPECT_TRUE(sum <= limit || count == 1) << sum << " in " << count;
    }
  }
}

}  // namespace pipewright
