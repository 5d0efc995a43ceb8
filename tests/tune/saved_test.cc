// Which results of tune a run may use, and why not others.
#include "tune/saved.h"

#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>

#include "base/error.h"
#include "base/files/atomic_file.h"
#include "base/files/read_file.h"
#include "tests/error_text.h"
#include "tests/temp_folder.h"

namespace pipewright {
namespace {

void Write(const std::string& name, const std::string& text) {
  std::filesystem::create_directories(std::filesystem::path(TempPath(name)).parent_path());
  std::ofstream(TempPath(name)) << text;
}

Json KeyOf(const std::string& job, int ranks, const std::string& memory = "",
           const TuneStart& start = {}, bool in_process = false, const std::string& plan = "") {
  Job read;
  read.path = "job.json", read.text = job, read.plan = plan;
  return TunedKey({TempPath("m.pkg"), ranks, start, memory, in_process}, read, Manifest());
}

TEST(TunedResults, AreFoundByTheirKey) {
  Write("m.pkg/manifest.json", "{}");
  const Json key = KeyOf(R"({"steps": 1, "threads": 2})", 2);
  EXPECT_EQ(key, KeyOf(R"({"steps": 9, "threads": 2, "save": "x"})", 2));
  EXPECT_NE(key, KeyOf(R"({"threads": 3})", 2));
  const std::string root = TempPath("tuned"), folder = TunedFolder(root, key);
  EXPECT_FALSE(IsTuned(folder, key));
  EXPECT_EQ(OtherTuned(root, key), "");
  CreateFolders(folder);
  for (const char* name : {"/job.json", "/conf.json"}) std::ofstream(folder + name) << "{}";
  EXPECT_FALSE(IsTuned(folder, key)) << "it is not complete";
  WriteTunedKey(folder, key, 0);
  EXPECT_TRUE(IsTuned(folder, key));
  EXPECT_EQ(CutOffAfter(folder), 0);
  WriteTunedKey(folder, key, 5);
  EXPECT_TRUE(IsTuned(folder, key));
  EXPECT_EQ(CutOffAfter(folder), 5);
  EXPECT_EQ(OtherTuned(root, KeyOf(R"({"threads": 2})", 4)), folder + " is for ranks 2, not 4");
  EXPECT_EQ(OtherKey(folder, KeyOf(R"({"threads": 2})", 4)), "ranks 2, not 4");
  EXPECT_EQ(OtherKey(folder, key), "");
  EXPECT_EQ(OtherTuned(root, KeyOf(R"({"threads": 3})", 2, "1GB")),
            folder + " is for another job, and for memory \"\", not \"1GB\"");
  EXPECT_EQ(OtherTuned(root, KeyOf(R"({"threads": 2})", 2, "", {"a:1,b:1", ""})),
            folder + " is for hosts \"\", not \"a:1,b:1\"");
  const Json with_mpirun = KeyOf(R"({"threads": 2})", 2, "", {"", "mpirun --host a"});
  EXPECT_FALSE(IsTuned(folder, with_mpirun));
  EXPECT_NE(OtherTuned(root, with_mpirun).find("mpirun \"\", not \"mpirun --host a\""),
            std::string::npos);
  EXPECT_EQ(OtherTuned(root, KeyOf(R"({"threads": 2})", 2, "", {}, true)),
            folder + " is for rank kind \"processes\", not \"threads\"");
  Write("own.csv", "0F0");
  const Json of_plan = KeyOf(R"({"threads": 2})", 2, "", {}, false, TempPath("own.csv"));
  Write("own.csv", "0F0,0B0");
  EXPECT_NE(of_plan, KeyOf(R"({"threads": 2})", 2, "", {}, false, TempPath("own.csv")));
  Write("m.pkg/manifest.json", "{ }");
  EXPECT_EQ(OtherTuned(root, KeyOf(R"({"threads": 2})", 2)), folder + " is for another package");
}

// Other rows may be longer, and whether a model mixes rows was found out with these.
TEST(TunedResults, AreForTheirDataAndWeights) {
  Write("d.pkg/manifest.json", "{}");
  Write("d.pkg/m.py", "");
  Write("d.pkg/weights", "1");
  Write("rows", "1");
  Job job;
  job.path = "job.json", job.text = "{}", job.data.tensors = {TempPath("rows")};
  Manifest manifest;
  manifest.modules.emplace_back();
  manifest.modules[0].weights = "weights", manifest.modules[0].code = "m.py";
  const auto key = [&] { return TunedKey({TempPath("d.pkg"), 2, {}, "", false}, job, manifest); };
  const std::string root = TempPath("other");
  const Json before = key();
  CreateFolders(TunedFolder(root, before));
  WriteTunedKey(TunedFolder(root, before), before, 0);
  EXPECT_EQ(key(), before);
  Write("rows", "12");
  EXPECT_TRUE(OtherTuned(root, key()).ends_with(" is for other data"));
  Write("d.pkg/weights", "12");
  EXPECT_TRUE(OtherTuned(root, key()).ends_with(" is for other data, and for other weights"));
}

// The data and the validation decide whether minibatches can be merged.
TEST(TunedResults, AreForMergedMinibatches) {
  Write("m.pkg/manifest.json", "{}");
  Json text = Json::parse(R"({"loss": "cross_entropy", "microbatches": 2, "microbatch_size": 2,
    "data": {"tokens": "text.bin", "dtype": "u8", "sequence_length": 4}, "accumulate": 3,
    "optimizer": {"type": "sgd", "lr": 0.1}})");
  const auto minibatches = [&](size_t samples) {
    Write("text.bin", std::string(4 * samples + 1, 'a'));
    Write("job.json", text.dump());
    const Json key =
        TunedKey({TempPath("m.pkg"), 2, {}, "", false}, ReadJob(TempPath("job.json")), Manifest());
    return key.value("minibatches", "");
  };
  EXPECT_EQ(minibatches(24), "merged");
  EXPECT_EQ(minibatches(28), "not merged");
  text["validation"] = {{"data", text["data"]}, {"every", 1}, {"steps", 2}};
  EXPECT_EQ(minibatches(24), "not merged");
  text.erase("accumulate");
  EXPECT_EQ(minibatches(24), "");
}

TEST(TunedResults, CheckpointsKnowTheirs) {
  const std::string job =
      R"({"data": {}, "schedule": "1f1b", "microbatches": 2, "minibatch_size": 8, "steps": 4})";
  Write("result/job.json", job);
  Write("result/conf.json", "2");
  const std::string checkpoints = TempPath("checkpoints");
  EXPECT_EQ(RecordedTuned(checkpoints), "");
  RecordTuned(checkpoints, TempPath("result"));
  EXPECT_EQ(RecordedTuned(checkpoints), TempPath("result"));
  Write("given.json",
        R"({"data": {}, "microbatches": 4, "microbatch_size": 1, "accumulate": 2, "steps": 9})");
  const Json renewed = ReadJson(RenewTunedJob(TempPath("result"), TempPath("given.json")));
  EXPECT_EQ(ReadJson(TempPath("result/job.json"))["steps"], 4) << "others may run by it";
  EXPECT_EQ(renewed["steps"], 9);
  EXPECT_EQ(renewed["microbatches"], 2);
  EXPECT_EQ(renewed["minibatch_size"], 8);
  EXPECT_FALSE(renewed.contains("recompute"));
  EXPECT_FALSE(renewed.contains("accumulate")) << "minibatches are merged";
  EXPECT_EQ(RecordedTuned(checkpoints), TempPath("result"));
  for (const char* file : {"result/plan.csv", "result/conf.json"}) {
    Write(file, "3");
    EXPECT_EQ(ErrorOf([&] { RecordedTuned(checkpoints); }),
              TempPath("result") + ": has changed since the checkpoints in " + checkpoints +
                  " were made with it\n  restore it, or resume without --tune");
    RecordTuned(checkpoints, TempPath("result"));
  }
  Json separate = ParseJson(job, "job");
  separate["accumulate"] = 3;
  Write("result/job.json", separate.dump());
  EXPECT_EQ(ReadJson(RenewTunedJob(TempPath("result"), TempPath("given.json")))["accumulate"], 3);
  for (const Json& recompute : {Json(true), Json({{"modules", {0}}}), Json({{"stages", {1}}})}) {
    Json with = ParseJson(job, "job");
    with["recompute"] = recompute;
    Write("result/job.json", with.dump());
    EXPECT_EQ(ReadJson(RenewTunedJob(TempPath("result"), TempPath("given.json")))["recompute"],
              recompute);
  }
  std::filesystem::remove(TempPath("result/job.json"));
  EXPECT_NE(ErrorOf([&] { RecordedTuned(checkpoints); }).find("is missing"), std::string::npos);
}

}  // namespace
}  // namespace pipewright
