#include "tensors/page_memory.h"

#include <gtest/gtest.h>
#include <torch/torch.h>

#include <cstdint>
#include <fstream>
#include <string>
#include <vector>

#include "tensors/device_load.h"
#include "tests/temp_folder.h"

namespace pipewright {
namespace {

// Returns the bytes of this process's anonymous memory, or -1 if the system does not report them.
int64_t Anonymous() {
  std::ifstream file("/proc/self/status");
  for (std::string word; file >> word;)
    if (word == "RssAnon:") {
      int64_t kilobytes = 0;
      file >> kilobytes;
      return kilobytes * 1024;
    }
  return -1;
}

TEST(PageMemory, IsMemoryAsAnyOther) {
  for (const std::vector<int64_t>& sizes :
       std::vector<std::vector<int64_t>>{{0, 3}, {}, {7}, {1024, 1000}}) {
    at::Tensor x = EmptyInPages(sizes, at::kFloat);
    EXPECT_EQ(x.sizes(), at::IntArrayRef(sizes));
    EXPECT_TRUE(x.is_contiguous());
    EXPECT_EQ(reinterpret_cast<uintptr_t>(x.data_ptr()) % 64, 0u);
    x.fill_(2).set_requires_grad(true);
    (x * x).sum().backward();
    EXPECT_TRUE(torch::equal(x.grad(), torch::full(sizes, 4.f)));
  }
  at::Tensor x = EmptyInPages({1 << 19}, at::kFloat).fill_(1);
  x.resize_({1 << 20});  // the content stays
  EXPECT_EQ(x.slice(0, 0, 1 << 19).sum().item<float>(), 1 << 19);
}

TEST(PageMemory, WeightsThatComeAndGoDoNotAddUp) {
  if (Anonymous() < 0) GTEST_SKIP() << "the system does not tell";
  constexpr int kModules = 16;
  constexpr int64_t kWidth = 1536, kBytes = kWidth * kWidth * 4;  // size of a weight: 9 MB
  const OffloadedTensor weight =
      OffloadedTensor::From(torch::zeros({kWidth, kWidth}), "w", TempPath("pages"));
  const std::vector<OffloadedTensor> weights(kModules, weight);
  std::vector<torch::Tensor> kept;  // allocations that modules leave between weights
  const int64_t before = Anonymous();
  for (const OffloadedTensor& one : weights) {
    const torch::Tensor first = one.Load(), second = one.Load();
    kept.push_back(first[0] + second[0]);
  }
  EXPECT_LT(Anonymous() - before, 4 * kBytes);
}

}  // namespace
}  // namespace pipewright
