// Tests which microbatches tune may choose for a file of inputs.
#include "tune/job/input_job.h"

#include <gtest/gtest.h>

#include "formats/weights/safetensors.h"
#include "tests/error_text.h"
#include "tests/temp_folder.h"

namespace pipewright {
namespace {

using Sizes = std::set<int64_t>;
constexpr int64_t kAny = 1 << 20;

TEST(InputJob, SizesAreThoseThatInferMakes) {
  EXPECT_EQ(SizesOfRows(1, 1, kAny), Sizes({1}));
  EXPECT_EQ(SizesOfRows(8, 1, kAny), Sizes({1, 2, 4, 8}));
  // Microbatches of 8 would be two, and two are of 5 each.
  EXPECT_EQ(SizesOfRows(10, 1, kAny), Sizes({1, 2, 4, 5, 10}));
  EXPECT_EQ(SizesOfRows(8, 2, 4), Sizes({2, 4}));
  EXPECT_EQ(SizesOfRows(9, 2, 4), Sizes({3})) << "others leave a last one of one row";
  EXPECT_EQ(SizesOfRows(12, 4, 4), Sizes({4})) << "a fixed size";
  EXPECT_EQ(SizesOfRows(9, 4, 4), Sizes());
}

// A model with the inputs x and y and one output.
Manifest Model(const std::string& batch, const std::string& output) {
  Manifest manifest;
  for (const char* name : {"x", "y", "z"}) {
    ValueInfo value;
    value.name = name, value.dtype = "float32";
    value.shape = {batch, "2"};
    manifest.values.push_back(value);
  }
  manifest.values[2].producer = 0;
  manifest.values[2].shape.clear();
  if (!output.empty()) manifest.values[2].shape = {output, "2"};
  manifest.inputs = {0, 1}, manifest.outputs = {2};
  manifest.symbols["s0"] = {1, 64};
  return manifest;
}

TuneRequest Inputs(int64_t x, int64_t y) {
  TuneRequest request;
  request.input = TempPath("in.safetensors");
  const std::vector<float> rows(static_cast<size_t>(2 * std::max(x, y)), 0);
  auto tensor = [&](const char* name, int64_t count) {
    return TensorToWrite{
        name,
        "F32",
        {count, 2},
        {reinterpret_cast<const char*>(rows.data()), static_cast<size_t>(8 * count)}};
  };
  WriteSafetensors(request.input, {tensor("x", x), tensor("y", y)});
  return request;
}

TEST(InputJob, RowsThatAreNotSamplesAreNotCut) {
  std::vector<std::string> notes;
  EXPECT_EQ(SizesOfInput(Inputs(6, 6), Model("s0", "s0"), {}, notes), Sizes({1, 2, 3, 6}));
  EXPECT_TRUE(notes.empty());
  const TuneRequest uneven = Inputs(6, 4);
  EXPECT_EQ(SizesOfInput(uneven, Model("s0", "s0"), {}, notes), Sizes({6}));
  EXPECT_EQ(SizesOfInput(Inputs(6, 6), Model("s0", ""), {}, notes), Sizes({6}));
  EXPECT_EQ(SizesOfInput(Inputs(6, 6), Model("s0", "s0"), {{"mean", true}}, notes), Sizes({6}));
  EXPECT_EQ(
      notes,
      (std::vector<std::string>{
          "the microbatch stays at 6 samples: input \"y\" does not have a row for each sample",
          "the microbatch stays at 6 samples: output \"z\" does not have a row for "
          "each sample",
          "the microbatch stays at 6 samples: forward writes to mean"}));
}

// Rows of x are samples, and y is a table: its rows are no samples even if they are as many.
TEST(InputJob, AnInputWithoutRowsOfSamplesIsNotCut) {
  std::vector<std::string> notes;
  Manifest manifest = Model("s0", "s0");
  for (const auto& [rows, table] : {std::pair<int64_t, const char*>{4, "4"}, {6, "s1"}}) {
    manifest.values[1].shape[0] = table;
    manifest.symbols["s1"] = {2, 64};
    EXPECT_EQ(SizesOfInput(Inputs(6, rows), manifest, {}, notes), Sizes({6})) << table;
    EXPECT_EQ(notes.back(),
              "the microbatch stays at 6 samples: input \"y\" does not have a row for each sample");
  }
  // The samples are not those of the first input.
  std::swap(manifest.inputs[0], manifest.inputs[1]);
  manifest.values[1].shape[0] = "4";
  const Sizes sizes = SizesOfInput(Inputs(6, 4), manifest, {}, notes);
  EXPECT_EQ(sizes, Sizes({6}));
  EXPECT_EQ(JobOfInput(Inputs(6, 4), manifest, sizes).minibatch_size, 6);
  // `infer` cuts all inputs or none.
  manifest = Model("3", "3");
  manifest.values[1].shape[0] = "4";
  const std::string said = ErrorOf([&] { SizesOfInput(Inputs(6, 4), manifest, {}, notes); });
  EXPECT_NE(
      said.find("its 6 rows cannot be cut into microbatches of 3 samples, which the model was "
                "exported for, since input \"y\" does not have a row for each sample"),
      std::string::npos)
      << said;
  EXPECT_EQ(SizesOfInput(Inputs(3, 4), manifest, {}, notes), Sizes({3}));
}

TEST(InputJob, AFixedSizeStays) {
  std::vector<std::string> notes;
  const TuneRequest request = Inputs(6, 6);
  const Sizes sizes = SizesOfInput(request, Model("2", "2"), {}, notes);
  EXPECT_EQ(sizes, Sizes({2}));
  const Job job = JobOfInput(request, Model("2", "2"), sizes);
  EXPECT_EQ(std::tuple(job.microbatches, job.microbatch_size, job.minibatch_size),
            std::tuple(3, 2, 6));
  const std::string said = ErrorOf([&] { SizesOfInput(request, Model("4", "4"), {}, notes); });
  EXPECT_NE(said.find("its 6 rows cannot be cut into microbatches of 4 samples"), std::string::npos)
      << said;
}

}  // namespace
}  // namespace pipewright
