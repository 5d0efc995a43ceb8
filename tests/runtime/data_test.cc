#include "runtime/data.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include "plan/error.h"
#include "plan/safetensors.h"
#include "plan/text.h"

namespace pipewright {

static Manifest OneInput(const std::string& name, const std::string& dtype) {
  Manifest manifest;
  manifest.values = {{name, "tensor", dtype, {"s0", "4"}, false, -1, {0}}};
  manifest.inputs = {0};
  return manifest;
}

static Job TokenJob(const std::string& bytes, int width) {
  Job job;
  job.path = "job.json";
  job.data.tokens = testing::TempDir() + "/tokens.bin";
  job.data.token_bytes = width;
  job.data.sequence_length = 4;
  job.data.shuffle = false;
  job.microbatch_size = 2;
  WriteFile(job.data.tokens, bytes);
  return job;
}

// Computed by a Python program from the definition in the header.
TEST(Data, EpochOrderIsThePublishedOne) {
  using Order = std::vector<int64_t>;
  EXPECT_EQ(EpochOrder(8, 0, 0, true), (Order{4, 0, 7, 3, 1, 2, 5, 6}));
  EXPECT_EQ(EpochOrder(8, 0, 1, true), (Order{4, 5, 1, 7, 2, 0, 6, 3}));
  EXPECT_EQ(EpochOrder(8, 7, 0, true), (Order{7, 2, 4, 5, 0, 6, 1, 3}));
  EXPECT_EQ(EpochOrder(4, 7, 0, false), (Order{0, 1, 2, 3}));
}

TEST(Data, TokensAreWindowsAndTheirSuccessors) {
  // 18 tokens: windows at 0, 4, 8, 12 (the next would need a token 20).
  Job job = TokenJob(std::string("abcdefghijklmnopqr"), 1);
  auto data = OpenData(job, OneInput("idx", "int64"));
  ASSERT_EQ(data->samples(), 4);
  const int64_t rows[] = {0, 3};
  at::Tensor input = data->Rows(0, rows, 2), target = data->Rows(-1, rows, 2);
  EXPECT_TRUE(at::equal(
      input, at::tensor({'a', 'b', 'c', 'd', 'm', 'n', 'o', 'p'}).view({2, 4}).to(at::kLong)));
  EXPECT_TRUE(at::equal(
      target, at::tensor({'b', 'c', 'd', 'e', 'n', 'o', 'p', 'q'}).view({2, 4}).to(at::kLong)));
}

TEST(Data, WideTokensAreLittleEndian) {
  Job job = TokenJob(std::string("\x01\x02\x00\x01\xff\xff\x00\x00\x07\x00", 10), 2);
  const int64_t row = 0;
  at::Tensor input = OpenData(job, OneInput("idx", "int32"))->Rows(0, &row, 1);
  EXPECT_EQ(input.scalar_type(), at::kInt);
  EXPECT_TRUE(at::equal(input, at::tensor({0x201, 0x100, 0xffff, 0}, at::kInt).view({1, 4})));
}

TEST(Data, MinibatchesGoOnAcrossEpochs) {
  Job job = TokenJob(std::string(4 * 5 + 1, 'x'), 1);  // 5 samples, 2 a minibatch: 2 a epoch
  job.data.shuffle = true;
  auto data = OpenData(job, OneInput("idx", "int64"));
  // Each sample is its own number.
  class Numbers : public Data {
   public:
    int64_t samples() const override { return 5; }
    at::Tensor Rows(int, const int64_t* rows, int64_t count) const override {
      return at::tensor(at::ArrayRef<int64_t>(rows, count));
    }
  } numbers;
  Sampler sampler(job, numbers);
  std::vector<int64_t> first = EpochOrder(5, 0, 0, true), second = EpochOrder(5, 0, 1, true);
  auto rows = [&](int64_t step) {
    at::Tensor out = sampler.Microbatch(0, step, 0);
    return std::vector<int64_t>(out.data_ptr<int64_t>(), out.data_ptr<int64_t>() + 2);
  };
  EXPECT_EQ(rows(1), (std::vector<int64_t>{first[2], first[3]}));
  EXPECT_EQ(rows(2), (std::vector<int64_t>{second[0], second[1]}));
  EXPECT_EQ(rows(0), (std::vector<int64_t>{first[0], first[1]}));  // also backwards
}

static std::string ErrorOf(const Job& job, const Manifest& manifest) {
  try {
    auto data = OpenData(job, manifest);
    Sampler sampler(job, *data);
  } catch (const Error& e) {
    return e.what();
  }
  return "accepted";
}

TEST(Data, Errors) {
  Job job = TokenJob("abc", 1);
  EXPECT_EQ(
      ErrorOf(job, OneInput("idx", "int64")),
      "job.json: the data has 0 samples, one minibatch takes 2 (microbatches x microbatch_size)");
  job = TokenJob("abc", 2);
  EXPECT_NE(ErrorOf(job, OneInput("idx", "int64")).find("not a multiple of 2 bytes"),
            std::string::npos);

  std::string path = testing::TempDir() + "/rows.safetensors";
  float numbers[8] = {};
  std::string_view bytes(reinterpret_cast<const char*>(numbers), sizeof numbers);
  WriteSafetensors(path, {{"images", "F32", {2, 4}, bytes}, {"labels", "F32", {8}, bytes}});
  Job rows;
  rows.path = "job.json";
  rows.data.tensors = path;
  rows.data.inputs = {{"imgs", "images"}};
  EXPECT_NE(ErrorOf(rows, OneInput("image", "float32")).find("the model has no input \"imgs\""),
            std::string::npos);
  rows.data.inputs = {{"x", "image"}};
  EXPECT_NE(ErrorOf(rows, OneInput("x", "float32")).find("(did you mean \"images\"?)"),
            std::string::npos);
  rows.data.inputs = {{"x", "images"}};
  EXPECT_NE(
      ErrorOf(rows, OneInput("x", "int64")).find("\"images\" is float32, input \"x\" takes int64"),
      std::string::npos);
  rows.data.target = "labels";
  EXPECT_NE(
      ErrorOf(rows, OneInput("x", "float32")).find("\"labels\" has 8 samples, \"images\" has 2"),
      std::string::npos);
  rows.data.target = "";
  EXPECT_EQ(ErrorOf(rows, OneInput("x", "float32")), "accepted");
}

}  // namespace pipewright
