#include "formats/weights/merge.h"

#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>

#include "base/error.h"
#include "base/files/read_file.h"
#include "formats/weights/diff.h"
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

TEST(Merge, RefusesADamagedShard) {
  const std::string folder = Checkpoints(), output = TempPath("damaged.safetensors");
  const std::string shard = folder + "/step-00000002/module1.safetensors";
  std::string bytes = ReadFile(shard);
  bytes.back() = static_cast<char>(bytes.back() ^ 1);
  std::ofstream(shard, std::ios::binary) << bytes;
  try {
    MergeRunCheckpoint(folder, output, 0, NoWarning);
    ADD_FAILURE() << "accepted";
  } catch (const Error& e) {
    EXPECT_NE(std::string(e.what()).find("module1.safetensors"), std::string::npos) << e.what();
  }
  EXPECT_FALSE(fs::exists(output));
}

TEST(Merge, TakesAnOlderCheckpointWithAWarning) {
  const std::string folder = Checkpoints(), output = TempPath("older.safetensors");
  fs::create_directory(folder + "/step-00000003");
  fs::copy(folder + "/step-00000002", folder + "/step-00000003");
  fs::remove(folder + "/step-00000003/module0.safetensors");
  std::vector<std::string> warnings;
  fs::remove(folder + "/latest");
  const MergedCheckpoint merged = MergeRunCheckpoint(
      folder, output, 0, [&](const std::string& text) { warnings.push_back(text); });
  EXPECT_EQ(fs::path(merged.from).filename(), "step-00000002");
  ASSERT_EQ(warnings.size(), 1u);
  EXPECT_TRUE(warnings[0].ends_with("; the next older checkpoint is taken")) << warnings[0];
  EXPECT_NE(warnings[0].find("step-00000003"), std::string::npos) << warnings[0];
}

}  // namespace pipewright
