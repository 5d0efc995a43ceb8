#include "formats/weights/diff.h"

#include <gtest/gtest.h>

#include <cmath>
#include <filesystem>

#include "base/files/read_file.h"
#include "formats/weights/tensors_to_write.h"
#include "tests/error_text.h"
#include "tests/temp_folder.h"

namespace pipewright {

using namespace std::string_literals;

namespace {

using Strings = std::vector<std::string>;

std::string Floats(const std::vector<float>& values) {
  return std::string(reinterpret_cast<const char*>(values.data()), values.size() * sizeof(float));
}

// Writes the tensors into a file and opens it.
Checkpoint Written(const std::string& name, std::vector<TensorToWrite> tensors,
                   const std::map<std::string, std::string>& metadata = {}) {
  const std::string path = TempPath(name + ".safetensors");
  WriteSafetensors(path, std::move(tensors), metadata);
  return OpenCheckpoint(path);
}

}  // namespace

TEST(Diff, CountsDifferentElements) {
  const std::string one = Floats({1, 2, 3, 4}), two = Floats({1, 2.5, 3, -4});
  const Checkpoint a = Written("a", {{"same", "F32", {4}, one}, {"w", "F32", {2, 2}, one}});
  const Checkpoint b = Written("b", {{"same", "F32", {4}, one}, {"w", "F32", {2, 2}, two}});
  EXPECT_TRUE(Diff(a, a).Equal());
  const CheckpointDifference difference = Diff(a, b);
  ASSERT_EQ(difference.different.size(), 1u);
  EXPECT_EQ(difference.different[0].name, "w");
  EXPECT_EQ(difference.different[0].reason, "values");
  EXPECT_EQ(difference.different[0].elements, 2u);
  EXPECT_EQ(difference.different[0].largest, 8);
  EXPECT_FALSE(difference.Equal());
}

TEST(Diff, ComparesBits) {
  const std::string one = Floats({0, NAN}), two = Floats({-0.0f, NAN}), three = Floats({0, 1});
  const Checkpoint a = Written("a", {{"w", "F32", {2}, one}});
  const Checkpoint b = Written("b", {{"w", "F32", {2}, two}});
  const Checkpoint c = Written("c", {{"w", "F32", {2}, three}});
  EXPECT_TRUE(Diff(a, a).Equal());  // equal bits, even if they are no number
  EXPECT_EQ(Diff(a, b).different.at(0).elements, 1u);
  EXPECT_EQ(Diff(a, b).different.at(0).largest, 0);
  EXPECT_TRUE(std::isnan(Diff(a, c).different.at(0).largest));
  const Checkpoint d = Written("d", {{"w", "BOOL", {2}, "\0\1"s}});
  const Checkpoint e = Written("e", {{"w", "BOOL", {2}, "\1\1"s}});
  EXPECT_EQ(Diff(d, e).different.at(0).elements, 1u);
  EXPECT_EQ(Diff(d, e).different.at(0).largest, -1);
}

TEST(Diff, NamesDtypesShapesAndTensorsOfOneSide) {
  const std::string eight(8, 'x');
  const Checkpoint a = Written("a", {{"d", "F32", {2}, eight},
                                     {"s", "F32", {2}, eight},
                                     {"z", "F32", {2}, eight},
                                     {"y", "F32", {2}, eight}});
  const Checkpoint b = Written(
      "b", {{"d", "F16", {4}, eight}, {"s", "F32", {2, 1}, eight}, {"c", "F32", {2}, eight}});
  const CheckpointDifference difference = Diff(a, b);
  EXPECT_EQ(difference.only_in_first, (Strings{"y", "z"}));
  EXPECT_EQ(difference.only_in_second, (Strings{"c"}));
  ASSERT_EQ(difference.different.size(), 2u);
  EXPECT_EQ(difference.different[0].reason, "dtype F32 and F16");
  EXPECT_EQ(difference.different[1].reason, "shape [2] and [2, 1]");
}

TEST(Diff, TiedNamesMeanTheNameThatWasKept) {
  const std::string one = Floats({1, 2}), two = Floats({1, 3});
  const Checkpoint both = Written("a", {{"emb", "F32", {2}, one}, {"head", "F32", {2}, one}});
  const Checkpoint kept = Written("b", {{"emb", "F32", {2}, one}}, {{"head", "emb"}});
  const Checkpoint other = Written("c", {{"emb", "F32", {2}, two}}, {{"head", "emb"}});
  EXPECT_TRUE(Diff(both, kept).Equal());
  EXPECT_TRUE(Diff(kept, both).Equal());
  EXPECT_EQ(Diff(both, other).different.size(), 2u);
}

TEST(TensorsToWrite, GivesBackWhatWasRead) {
  const std::string one = Floats({1, 2}), two = Floats({5});
  const Checkpoint from = Written("a", {{"v", "F32", {2}, one}, {"u", "F32", {1}, two}});
  std::map<std::string, std::string> metadata;
  const Checkpoint to = Written("b", TensorsToWrite(from, {}, metadata), metadata);
  EXPECT_TRUE(Diff(from, to).Equal());
  EXPECT_EQ(to.tensors.size(), 2u);
  EXPECT_TRUE(metadata.empty());
}

// The index takes a.weight from one file of torch.save, and b.weight, which is equal, from the
// other.
TEST(TensorsToWrite, EqualTensorsOfTwoFilesAreRefusedTiedOrKeptApart) {
  const std::string folder = TempPath("two_files");
  std::filesystem::create_directory(folder);
  for (const char* name : {"/1.bin", "/2.bin"})
    std::filesystem::copy(TEST_DIR "/data/fuzz/state.pt", folder + name);
  WriteFile(folder + "/pytorch_model.bin.index.json", R"({"weight_map":
      {"a.bias": "1.bin", "a.weight": "1.bin", "n": "1.bin", "b.weight": "2.bin"}})");
  const Checkpoint from = OpenCheckpoint(folder);
  WriteChoices choices;
  std::map<std::string, std::string> metadata;
  auto write = [&](WriteChoices::Equal equal) {
    choices.equal = equal;
    metadata.clear();
    const std::vector<TensorToWrite> tensors = TensorsToWrite(from, choices, metadata);
    const Checkpoint to = Written("c", tensors, metadata);
    EXPECT_TRUE(Diff(from, to).Equal());
    Strings names;
    for (const StoredTensor& tensor : to.tensors) names.push_back(tensor.name);
    return names;
  };
  EXPECT_EQ(ErrorOf([&] { write(WriteChoices::kRefused); }),
            folder +
                ": \"a.weight\" and \"b.weight\" are bitwise identical but in different files, "
                "which do not say whether the model ties them\n  --equal tied writes one for "
                "both, as a strict load into a model that ties them expects; --equal apart "
                "writes each");
  EXPECT_EQ(write(WriteChoices::kTied), (Strings{"a.bias", "a.weight", "n"}));
  EXPECT_EQ(metadata,
            (std::map<std::string, std::string>{kPytorchFormat, {"b.weight", "a.weight"}}));
  EXPECT_EQ(write(WriteChoices::kApart), (Strings{"a.bias", "a.weight", "b.weight", "n"}));
  EXPECT_TRUE(metadata.empty());
}

// In this state dict of torch.save, b.weight is a.weight, and t is its transpose.
TEST(TensorsToWrite, WritesOneOfTheNamesThatShareMemory) {
  const Checkpoint from = OpenCheckpoint(TEST_DIR "/data/fuzz/state.pt");
  std::map<std::string, std::string> metadata;
  const Checkpoint to = Written("b", TensorsToWrite(from, {}, metadata), metadata);
  EXPECT_EQ(metadata, (std::map<std::string, std::string>{
                          kPytorchFormat, {"b.weight", "a.weight"}, {"t", "a.weight"}}));
  Strings names;
  for (const StoredTensor& tensor : to.tensors) names.push_back(tensor.name);
  EXPECT_EQ(names, (Strings{"a.bias", "a.weight", "n"}));
  const CheckpointDifference difference = Diff(from, to);
  EXPECT_EQ(difference.only_in_first, (Strings{"t"}));  // it has another shape
  EXPECT_TRUE(difference.only_in_second.empty() && difference.different.empty());
}

}  // namespace pipewright
