#include "runtime/data/data.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <cstring>

#include "base/files/read_file.h"
#include "formats/weights/safetensors.h"
#include "tests/error_text.h"

namespace pipewright {

static Manifest OneInput(const std::string& name, const std::string& dtype) {
  Manifest manifest;
  manifest.values = {{name, ValueKind::kTensor, dtype, {"s0", "4"}, false, -1, {0}, {}}};
  manifest.inputs = {0};
  return manifest;
}

static Job TokenJob(const std::string& bytes, int width) {
  Job job;
  job.path = "job.json";
  job.data.tokens = {testing::TempDir() + "/tokens.bin"};
  job.data.target = "target";
  job.data.token_bytes = width;
  job.data.sequence_length = 4;
  job.data.shuffle = false;
  job.microbatch_size = 2;
  WriteFile(job.data.tokens[0], bytes);
  return job;
}

TEST(Data, TokensTakeTheInputsType) {
  Job job = TokenJob(std::string("abcdefgh"), 1);
  const int64_t row = 0;
  auto data = OpenData(job.data, OneInput("idx", "int32"), "data");
  EXPECT_TRUE(
      at::equal(data->Rows(0, &row, 1), at::tensor({'a', 'b', 'c', 'd'}, at::kInt).view({1, 4})));
  EXPECT_TRUE(
      at::equal(data->Rows(-1, &row, 1), at::tensor({'b', 'c', 'd', 'e'}, at::kLong).view({1, 4})));
}

TEST(Data, MinibatchesGoOnAcrossEpochs) {
  // Each sample is its own number; 5 samples, 2 per minibatch: 2 minibatches per epoch.
  class Numbers : public DataSource {
   public:
    std::vector<DataColumn> columns() const override { return {{"x", "int64", {}}}; }
    int64_t samples() const override { return 5; }
    void Read(int, int64_t sample, char* to) const override { std::memcpy(to, &sample, 8); }
  };
  Job job;
  job.microbatch_size = 2;
  job.data.inputs = {{"idx", "x"}};
  Data data(std::make_shared<Numbers>(), job.data, OneInput("idx", "int64"), "data");
  Sampler sampler(job, true, data);
  std::vector<int64_t> first = EpochOrder(5, 0, 0, true), second = EpochOrder(5, 0, 1, true);
  auto rows = [&](int64_t step) {
    at::Tensor out = sampler.Microbatch(0, step, 0);
    return std::vector<int64_t>(out.data_ptr<int64_t>(), out.data_ptr<int64_t>() + 2);
  };
  EXPECT_EQ(rows(1), (std::vector<int64_t>{first[2], first[3]}));
  EXPECT_EQ(rows(2), (std::vector<int64_t>{second[0], second[1]}));
  EXPECT_EQ(rows(0), (std::vector<int64_t>{first[0], first[1]}));  // backwards, too
  // From the middle of an epoch, even at a sample where no minibatch began before.
  sampler.StartAt(7, {0, 1});
  EXPECT_EQ(rows(8), (std::vector<int64_t>{first[3], first[4]}));
  EXPECT_EQ(sampler.Position(9), (DataPosition{1, 0}));
  EXPECT_EQ(rows(10), (std::vector<int64_t>{second[2], second[3]}));
  sampler.StartAt(7, {0, 4});  // one sample is left: too few
  EXPECT_EQ(rows(7), (std::vector<int64_t>{second[0], second[1]}));
}

static std::string DataError(const Job& job, const Manifest& manifest) {
  return ErrorOf([&] {
    auto data = OpenData(job.data, manifest, "job.json: data");
    Sampler sampler(job, true, *data);
  });
}

TEST(Data, Errors) {
  Job job = TokenJob("abc", 1);
  EXPECT_EQ(
      DataError(job, OneInput("idx", "int64")),
      "job.json: the data has 0 samples, one minibatch takes 2 (microbatches x microbatch_size)\n"
      "  give it more data, or make \"sequence_length\", if it has one, smaller");

  std::string path = testing::TempDir() + "/rows.safetensors";
  float numbers[8] = {};
  std::string_view bytes(reinterpret_cast<const char*>(numbers), sizeof numbers);
  WriteSafetensors(path, {{"images", "F32", {2, 4}, bytes}, {"labels", "F32", {8}, bytes}});
  Job rows;
  rows.path = "job.json";
  rows.data.tensors = {path};
  rows.data.inputs = {{"imgs", "images"}};
  EXPECT_NE(DataError(rows, OneInput("image", "float32")).find("the model has no input \"imgs\""),
            std::string::npos);
  rows.data.inputs = {{"x", "image"}};
  EXPECT_NE(DataError(rows, OneInput("x", "float32")).find("(did you mean \"images\"?)"),
            std::string::npos);
  rows.data.inputs = {{"x", "images"}};
  EXPECT_NE(DataError(rows, OneInput("x", "int64"))
                .find("\"images\" is float32, input \"x\" takes int64"),
            std::string::npos);
  rows.data.target = "labels";
  EXPECT_NE(
      DataError(rows, OneInput("x", "float32")).find("\"labels\" has 8 samples, \"images\" has 2"),
      std::string::npos);
  rows.data.target = "";
  EXPECT_EQ(DataError(rows, OneInput("x", "float32")), "");
}

}  // namespace pipewright
