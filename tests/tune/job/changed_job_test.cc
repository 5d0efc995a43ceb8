// The jobs of candidates read the same data.
#include "tune/job/changed_job.h"

#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>

#include "base/files/read_file.h"
#include "base/json.h"
#include "tests/temp_folder.h"

namespace pipewright {
namespace {

std::string File(const std::string& name, const std::string& text) {
  std::ofstream(TempPath(name)) << text;
  return TempPath(name);
}

TEST(ChangedJob, KeepsDataAndDropsWhatDependsOnThePlan) {
  std::filesystem::create_directories(TempPath("jobs/tuned"));
  const std::string from =
      File("jobs/job.json",
           "{\"data\": {\"tokens\": [\"a.bin\", \"../b.bin\"], \"arrays\": "
           "{\"x\": \"/abs/c.npy\"}, \"length\": 8},\n"
           "\"plan\": \"p.csv\", \"memory\": \"1GiB\", \"recompute\": [1],\n"
           "\"microbatch_size\": 4, \"accumulate\": 3, \"epochs\": 2, \"save\": "
           "\"w.safetensors\",\n\"metrics\": \"/dev/stdout\", \"report\": \"\", \"checkpoint\": "
           "{\"to\": \"c\", \"every\": 2}}");
  const std::string to = TempPath("jobs/tuned/job.json");
  const Json job = ParseJson(ChangedJob(ReadJson(from), from, to, {"1f1b", 8, 32}), to);
  const auto target = std::filesystem::path(to).parent_path();
  EXPECT_EQ(job["data"]["tokens"], Json({"../a.bin", "../../b.bin"}));
  const std::string absolute = job["data"]["arrays"]["x"];
  EXPECT_EQ((target / absolute).lexically_normal(), "/abs/c.npy");
  EXPECT_EQ(job["data"]["length"], 8);
  EXPECT_EQ(job["schedule"], "1f1b");
  EXPECT_EQ(job["microbatches"], 8);
  EXPECT_EQ(job["minibatch_size"], 32);
  EXPECT_EQ(job["epochs"], 2);
  EXPECT_EQ(job["save"], "../w.safetensors");
  EXPECT_EQ(job["metrics"], "/dev/stdout");
  EXPECT_EQ(job["report"], "") << "none";
  EXPECT_EQ(job["checkpoint"]["to"], "../c");
  EXPECT_EQ(job["checkpoint"]["every"], 2);
  for (const char* same : {"threads", "body"}) EXPECT_FALSE(job.contains(same)) << same;
  for (const char* gone : {"plan", "memory", "microbatch_size", "recompute", "accumulate"})
    EXPECT_FALSE(job.contains(gone)) << gone;
  EXPECT_EQ(ParseJson(ChangedJob(ReadJson(from), from, to, {"gpipe", 1, 1, {{"stages", {0, 2}}}}),
                      to)["recompute"]["stages"],
            Json({0, 2}));
  const Json other =
      ParseJson(ChangedJob(ReadJson(from), from, to, {"plan.csv", 1, 1, nullptr, 2, "lists"}), to);
  JobChanges minibatches = {"1f1b", 2, 8};
  minibatches.accumulate = 4;
  EXPECT_EQ(ParseJson(ChangedJob(ReadJson(from), from, to, minibatches), to)["accumulate"], 4);
  EXPECT_EQ(other["threads"], 2);
  EXPECT_EQ(other["body"], "lists");
}

// A job is read with its folder's name put before the paths in it, whether or not that is a link.
TEST(ChangedJob, KeepsDataWhereTheFolderIsALink) {
  std::filesystem::create_directories(TempPath("far/away/tuned"));
  std::filesystem::create_directories(TempPath("near"));
  std::filesystem::create_directory_symlink(TempPath("far/away/tuned"), TempPath("near/link"));
  const std::string from = File("near/job.json", R"({"data": {"tokens": "a.bin"}})"),
                    to = TempPath("near/link/job.json");
  const Json job = ParseJson(ChangedJob(ReadJson(from), from, to, {"1f1b", 8, 32}), to);
  EXPECT_EQ(job["data"]["tokens"], "../a.bin");
}

TEST(ChangedJob, ErasesOutputs) {
  Json job = {{"save", "a"}, {"metrics", "b"}, {"validation", {}}, {"steps", 4}};
  KeepOnlySteps(job);
  EXPECT_EQ(job, Json({{"steps", 4}}));
}

}  // namespace
}  // namespace pipewright
