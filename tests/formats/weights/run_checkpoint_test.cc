#include "formats/weights/run_checkpoint.h"

#include <gtest/gtest.h>

#include <filesystem>
#include <functional>

#include "base/error.h"
#include "base/files/read_file.h"
#include "tests/error_text.h"
#include "tests/temp_folder.h"

namespace pipewright {

namespace fs = std::filesystem;

static std::string Fresh(const std::string& name) {
  std::string folder = TempPath(name);
  fs::remove_all(folder);
  fs::create_directories(folder);
  return folder;
}

// Commits a checkpoint of one shard with `content`.
static void Commit(const std::string& folder, int64_t step, const std::string& content,
                   int64_t keep = 0) {
  RunCheckpoint checkpoint;
  checkpoint.path = TemporaryCheckpoint(folder, "run", step);
  fs::create_directories(checkpoint.path);
  std::string shard = checkpoint.path + "/module0.safetensors";
  WriteFile(shard, content);
  checkpoint.step = step;
  checkpoint.data = {2, 40};
  checkpoint.seed = 7;
  checkpoint.optimizer = "sgd";
  checkpoint.job = "{\"steps\": 3}";
  checkpoint.files["module0.safetensors"] = {content.size(), HashFile(shard), ""};
  checkpoint.weight_of["a"] = "module0.safetensors";
  WriteRunCheckpoint(checkpoint);
  CommitCheckpoint(checkpoint.path, folder, step, keep);
}

static std::vector<std::string> Names(const std::string& folder) {
  std::vector<std::string> names;
  for (const std::string& path : ListCheckpoints(folder))
    names.push_back(fs::path(path).filename().string());
  return names;
}

using Strings = std::vector<std::string>;

TEST(RunCheckpoint, ReadsWhatWasWritten) {
  std::string folder = Fresh("checkpoints");
  Commit(folder, 20, "content");
  for (const std::string& path : {folder, folder + "/latest", folder + "/step-00000020"}) {
    RunCheckpoint read = ReadRunCheckpoint(path);
    EXPECT_EQ(read.path, folder + "/step-00000020");
    EXPECT_EQ(read.step, 20);
    EXPECT_EQ(read.data, (DataPosition{2, 40}));
    EXPECT_EQ(read.seed, 7u);
    EXPECT_EQ(read.optimizer, "sgd");
    EXPECT_EQ(read.weight_of.at("a"), "module0.safetensors");
    VerifyShard(read, "module0.safetensors");
  }
}

TEST(RunCheckpoint, KeepsTheLastAndNeverTouchesLaterOnes) {
  std::string folder = Fresh("checkpoints");
  for (int64_t step : {1, 2, 3, 4}) Commit(folder, step, "content", 2);
  EXPECT_EQ(Names(folder), (Strings{"step-00000004", "step-00000003"}));
  // After a run went back, its checkpoint is the latest, although it is not the highest.
  Commit(folder, 2, "other", 2);
  EXPECT_EQ(ReadFile(folder + "/latest"), "step-00000002\n");
  EXPECT_EQ(Names(folder), (Strings{"step-00000002", "step-00000004", "step-00000003"}));
  // Nothing else is left behind.
  EXPECT_EQ(std::distance(fs::directory_iterator(folder), {}), 4);
}

TEST(RunCheckpoint, ListsThoseThatARunLeftBehindLast) {
  std::string folder = Fresh("checkpoints");
  for (int64_t step : {1, 2, 5, 6, 3}) Commit(folder, step, "content");
  EXPECT_EQ(LatestStep(folder), 3);
  EXPECT_EQ(Names(folder), (Strings{"step-00000003", "step-00000002", "step-00000001",
                                    "step-00000006", "step-00000005"}));
  fs::remove_all(folder + "/step-00000003");  // `latest` still says how far the run had come
  EXPECT_EQ(Names(folder),
            (Strings{"step-00000002", "step-00000001", "step-00000006", "step-00000005"}));
  fs::remove(folder + "/latest");
  EXPECT_EQ(LatestStep(folder), -1);
  EXPECT_EQ(Names(folder),
            (Strings{"step-00000006", "step-00000005", "step-00000002", "step-00000001"}));
}

TEST(RunCheckpoint, ReplacesOneOfTheSameStep) {
  std::string folder = Fresh("checkpoints");
  Commit(folder, 1, "old");
  Commit(folder, 1, "new");
  EXPECT_EQ(ReadFile(folder + "/step-00000001/module0.safetensors"), "new");
  EXPECT_EQ(std::distance(fs::directory_iterator(folder), {}), 2);
}

// With a file or a link where a step's folder should be, and a link to itself.
TEST(RunCheckpoint, PassesOverAndReplacesFiles) {
  std::string folder = Fresh("checkpoints");
  Commit(folder, 1, "content");
  WriteFile(folder + "/step-00000002", "a file");
  fs::create_symlink("step-00000003", folder + "/step-00000003");
  fs::create_directories(folder + "/step-00000004");
  fs::create_symlink("checkpoint.json", folder + "/step-00000004/checkpoint.json");
  EXPECT_EQ(Names(folder), Strings{"step-00000001"});
  EXPECT_EQ(IncompleteCheckpoints(folder).size(), 3u);
  for (int64_t step : {2, 3, 4}) Commit(folder, step, "content");
  EXPECT_EQ(Names(folder),
            (Strings{"step-00000004", "step-00000003", "step-00000002", "step-00000001"}));
  EXPECT_EQ(std::distance(fs::directory_iterator(folder), {}), 5);
}

TEST(RunCheckpoint, ListsOnlyCompleteOnes) {
  std::string folder = Fresh("checkpoints");
  EXPECT_THROW(ReadRunCheckpoint(folder), Error);
  Commit(folder, 1, "content");
  fs::create_directories(folder + "/step-00000002");  // no checkpoint.json
  fs::create_directories(folder + "/step-x");
  fs::create_directories(TemporaryCheckpoint(folder, "run", 3));
  WriteFile(folder + "/latest", "step-00000002\n");
  EXPECT_EQ(Names(folder), Strings{"step-00000001"});
  EXPECT_EQ(ReadRunCheckpoint(folder).step, 1);
  CleanCheckpoints(folder);
  EXPECT_FALSE(fs::exists(TemporaryCheckpoint(folder, "run", 3)));
  EXPECT_TRUE(fs::exists(folder + "/step-00000001"));
}

static std::string Problem(const RunCheckpoint& checkpoint) {
  const std::string error = ErrorOf([&] { VerifyShard(checkpoint, "module0.safetensors"); });
  return error.empty() ? "" : error.substr(checkpoint.path.size());
}

TEST(RunCheckpoint, NamesDamagedShards) {
  std::string folder = Fresh("checkpoints");
  Commit(folder, 1, "content");
  RunCheckpoint checkpoint = ReadRunCheckpoint(folder);
  std::string shard = checkpoint.path + "/module0.safetensors";
  EXPECT_EQ(Problem(checkpoint), "");
  WriteFile(shard, "conten");
  EXPECT_EQ(Problem(checkpoint), "/module0.safetensors: has 6 bytes, 7 were written");
  WriteFile(shard, "Content");
  EXPECT_EQ(Problem(checkpoint),
            "/module0.safetensors: has other content than was written (its hash differs)");
  fs::remove(shard);
  EXPECT_EQ(Problem(checkpoint), "/module0.safetensors: the shard is missing");
}

// Files that are valid JSON but not as they were written.
TEST(RunCheckpoint, NamesDamagedDescriptionsAndIndexes) {
  const std::string description = "/checkpoint.json", index = "/model.safetensors.index.json";
  const std::string other = ": has other content than was written (its hash differs)";
  auto replaced = [](const std::string& from, const std::string& to) {
    return [=](std::string text) {
      const size_t at = text.find(from);
      EXPECT_NE(at, std::string::npos) << text;
      return text.replace(at, from.size(), to);
    };
  };
  auto whole = [](const std::string& text) { return [=](std::string) { return text; }; };
  struct Case {
    std::string file;
    std::function<std::string(std::string)> change;
    std::string expected;
  };
  const Case cases[] = {
      {index, whole("{}"), index + ": has 2 bytes, "},
      {index, replaced("module0", "module1"), index + other},
      {description, whole("{}"), description + ": \"hash\" is missing"},
      {description, whole("[]"), description + ": \"hash\" is missing"},
      {description, whole("\xff\xfe"), description + ":1:1: "},
      {description, replaced("\"sample\": 40", "\"sample\": 41"), description + other},
      {description, replaced("\"seed\": 7,", ""), description + other},
      {description, replaced("\"seed\": 7", "\"seed\": \"7\""), description + other},
  };
  for (const Case& c : cases) {
    std::string folder = Fresh("checkpoints");
    Commit(folder, 1, "content");
    folder += "/step-00000001";
    WriteFile(folder + c.file, c.change(ReadFile(folder + c.file)));
    try {
      ReadRunCheckpoint(folder);
      ADD_FAILURE() << c.expected;
    } catch (const Error& e) {
      EXPECT_EQ(std::string(e.what()).substr(folder.size(), c.expected.size()), c.expected);
    }
  }
  std::string folder = Fresh("checkpoints");
  Commit(folder, 1, "content");
  fs::remove(folder + "/step-00000001" + index);
  EXPECT_THROW(ReadRunCheckpoint(folder), Error);
}

TEST(RunCheckpoint, SaysNothingOfFilesThatLieBesideIt) {
  std::string folder = Fresh("checkpoints");
  Commit(folder, 1, "content");
  folder += "/step-00000001";
  for (const char* name : {"/merged.safetensors", "/module9.safetensors"}) {
    WriteFile(folder + name, "other");
    EXPECT_EQ(VerifyRunCheckpoint(folder + name), 0u);
  }
  EXPECT_EQ(VerifyRunCheckpoint(folder + "/module0.safetensors"), 1u);
  WriteFile(folder + "/checkpoint.json", "{}");
  EXPECT_EQ(VerifyRunCheckpoint(folder + "/merged.safetensors"), 0u);
  EXPECT_THROW(VerifyRunCheckpoint(folder + "/module0.safetensors"), Error);
  EXPECT_THROW(VerifyRunCheckpoint(folder), Error);
}

TEST(RunCheckpoint, TellsWhatLatestNames) {
  std::string folder = Fresh("checkpoints");
  Commit(folder, 1, "content");
  EXPECT_EQ(IncompleteCheckpoints(folder), Strings{});
  for (auto [text, expected] :
       {std::pair{"step-00000009\n", "names step-00000009, which is not there"},
        {"../..\n", "names no checkpoint: \"../..\""},
        {"\x01x", "names no checkpoint: \"\\u0001x\""}}) {
    WriteFile(folder + "/latest", text);
    EXPECT_EQ(IncompleteCheckpoints(folder), Strings{folder + "/latest: " + expected});
    EXPECT_EQ(Names(folder), Strings{"step-00000001"});
  }
}

}  // namespace pipewright
