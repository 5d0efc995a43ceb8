#include "formats/weights/merge.h"

#include <gtest/gtest.h>

#include <filesystem>

#include "base/files/read_file.h"
#include "formats/weights/diff.h"
#include "formats/weights/run_checkpoint.h"
#include "tests/error_text.h"
#include "tests/temp_folder.h"

namespace pipewright {

namespace fs = std::filesystem;

namespace {

// Copies the checkpoints of a run.
std::string Checkpoints() {
  const std::string folder = TempPath("checkpoints");
  fs::remove_all(folder);
  fs::copy(TEST_DIR "/data/kept/checkpoints", folder,
           fs::copy_options::recursive | fs::copy_options::copy_symlinks);
  return folder;
}

void NoWarning(const std::string& text) { ADD_FAILURE() << text; }

// Returns the number of tensors after checking that both have the same.
size_t ExpectEqual(const std::string& first, const std::string& second) {
  const Checkpoint a = OpenCheckpoint(first), b = OpenCheckpoint(second);
  EXPECT_TRUE(Diff(a, b).Equal());
  return b.tensors.size();
}

}  // namespace

TEST(Merge, WritesOneFile) {
  const std::string folder = Checkpoints(), output = TempPath("merged.safetensors");
  for (const std::string& from : {folder, folder + "/step-00000002"}) {
    const MergedCheckpoint merged = MergeRunCheckpoint(from, output, 0, NoWarning);
    EXPECT_EQ(fs::path(merged.from).filename(), "step-00000002");
    EXPECT_EQ(merged.files, std::vector<std::string>{output});
    EXPECT_GT(ExpectEqual(merged.from, output), 0u);
    fs::remove(output);
  }
}

TEST(Merge, WritesIntoAFolder) {
  const std::string folder = Checkpoints(), output = TempPath("one");
  fs::create_directory(output);
  const MergedCheckpoint merged = MergeRunCheckpoint(folder, output, 0, NoWarning);
  EXPECT_EQ(merged.files, std::vector<std::string>{output + "/model.safetensors"});
  ExpectEqual(merged.from, output);
}

TEST(Merge, WritesShardsOfLimitedSize) {
  const std::string folder = Checkpoints(), output = TempPath("shards");
  const MergedCheckpoint merged = MergeRunCheckpoint(folder, output, 400, NoWarning);
  ASSERT_GT(merged.files.size(), 2u);
  EXPECT_TRUE(merged.files.back().ends_with(".index.json"));
  ExpectEqual(merged.from, output);
  for (size_t i = 0; i + 1 < merged.files.size(); ++i) {
    const Checkpoint shard = OpenCheckpoint(merged.files[i]);
    uint64_t bytes = 0;
    for (const StoredTensor& tensor : shard.tensors) bytes += Bytes(shard, tensor).size();
    EXPECT_TRUE(bytes <= 400 || shard.tensors.size() == 1) << merged.files[i];
  }
}

TEST(Merge, NamesShardsAfterTheFile) {
  const std::string folder = Checkpoints(), output = TempPath("named.safetensors");
  const MergedCheckpoint merged = MergeRunCheckpoint(folder, output, 1000, NoWarning);
  const size_t shards = merged.files.size() - 1;
  ASSERT_GT(shards, 1u);
  EXPECT_EQ(merged.files[0],
            TempPath("named-00001-of-0000" + std::to_string(shards) + ".safetensors"));
  EXPECT_EQ(merged.files.back(), output + ".index.json");
  ExpectEqual(merged.from, merged.files.back());
}

// Flips a bit of the file's last byte.
static void Damage(const std::string& file) {
  std::string bytes = ReadFile(file);
  bytes.back() = static_cast<char>(bytes.back() ^ 1);
  WriteFile(file, bytes);
}

TEST(Merge, RefusesADamagedShard) {
  const std::string folder = Checkpoints(), output = TempPath("damaged.safetensors");
  const std::string shard = folder + "/step-00000002/module1.safetensors";
  Damage(shard);
  EXPECT_EQ(ErrorOf([&] { MergeRunCheckpoint(folder, output, 0, NoWarning); }),
            shard + ": has other content than was written (its hash differs)");
  EXPECT_FALSE(fs::exists(output));
}

TEST(Merge, TakesAnOlderCheckpointWithAWarning) {
  const std::string folder = Checkpoints(), output = TempPath("older.safetensors");
  const std::string older = folder + "/step-00000002";
  RunCheckpoint newer = ReadRunCheckpoint(older);
  newer.path = folder + "/step-00000003", newer.step = 3;
  fs::copy(older, newer.path);
  WriteRunCheckpoint(newer);
  fs::remove(folder + "/latest");
  EXPECT_EQ(MergeRunCheckpoint(folder, output, 0, NoWarning).from, newer.path);

  const std::string shard = newer.path + "/module0.safetensors";
  std::vector<std::string> warnings;
  auto merge = [&] {
    warnings.clear();
    return MergeRunCheckpoint(folder, output, 0,
                              [&](const std::string& text) { warnings.push_back(text); });
  };
  Damage(shard);
  EXPECT_EQ(merge().from, older);
  EXPECT_EQ(warnings, std::vector<std::string>{
                          shard + ": has other content than was written (its hash differs); "
                                  "the next older checkpoint is taken"});
  fs::remove(shard);
  EXPECT_EQ(merge().from, older);
  EXPECT_EQ(warnings, std::vector<std::string>{
                          shard + ": the shard is missing; the next older checkpoint is taken"});
  Damage(older + "/module0.safetensors");
  EXPECT_EQ(ErrorOf(merge), older +
                                "/module0.safetensors: has other content than was written (its "
                                "hash differs)");
  EXPECT_EQ(warnings.size(), 1u);
}

}  // namespace pipewright
