#include "runtime/checkpoint/checkpoint.h"

#include <gtest/gtest.h>

#include <filesystem>

#include "formats/weights/safetensors.h"
#include "runtime/checkpoint/checkpoint_folder.h"
#include "runtime/resume.h"
#include "tests/error_text.h"
#include "tests/runtime/small_package.h"
#include "tests/temp_folder.h"

namespace pipewright {
namespace {

namespace fs = std::filesystem;

// Trains `steps` steps on two ranks with a checkpoint after each; returns the weights of rank 0 and
// of rank 1 at the end.
std::vector<at::Tensor> Train(const std::string& folder, Job job, int64_t steps) {
  const std::string package = SmallPackage("checkpoint.pkg");
  SmallData data;
  std::vector<at::Tensor> weights(2);
  job.checkpoint = {.folder = folder, .every = 1, .keep = 2};
  job.steps = steps;
  WithSession(package, 2, job, data, [&](Session& session) {
    CheckpointFolder to = OpenCheckpointFolder(folder, "to", false, session.transport);
    EXPECT_TRUE(to.shared());
    Checkpointer checkpointer(session, to);
    for (int64_t step = 1; step <= steps; ++step) {
      session.Step(data, step - 1);
      checkpointer.AfterStep(step, {step / 2, 10 * step});
      checkpointer.Told(step);
    }
    checkpointer.Finish();
    const int rank = session.transport.rank();
    weights[rank] = session.stages->Weight(rank, rank ? "shift" : "scale").detach().clone();
  });
  return weights;
}

TEST(Resume, ContinuesOnOtherRanksAsIfTheRunHadNotEnded) {
  const Job job = SmallJob();
  const std::string folder = TempPath("go-on");
  Train(folder, job, 2);
  const std::vector<at::Tensor> whole = Train(TempPath("whole"), job, 3);
  SmallReference reference;
  SmallData data;
  for (int step = 0; step < 3; ++step) reference.Step(data, job);
  EXPECT_TRUE(Close(whole[0], reference.scale) && Close(whole[1], reference.shift));
  // Both stages on one rank.
  WithSession(
      SmallPackage("alone.pkg", {0, 0}), 1, job, data,
      [&](Session& session) {
        const RunCheckpoint from = Resume(folder, session);
        EXPECT_EQ(from.path, folder + "/step-00000002");
        EXPECT_EQ(from.step, 2);
        EXPECT_EQ(from.data, (DataPosition{1, 20}));
        EXPECT_EQ(session.stages->updater().Steps(0, 0), 2);
        session.Start();
        session.Step(data, 2);
        EXPECT_TRUE(at::equal(session.stages->Weight(0, "scale"), whole[0]));
        EXPECT_TRUE(at::equal(session.stages->Weight(1, "shift"), whole[1]));
      },
      /*resumes=*/true);
}

TEST(Resume, PassesOverWhatIsDamagedAndRefusesOtherRuns) {
  const std::string folder = TempPath("damaged");
  Train(folder, SmallJob(), 3);
  EXPECT_EQ(ListCheckpoints(folder).size(), 2u);  // the last `keep`
  const std::string package = SmallPackage("damaged.pkg");
  SmallData data;
  auto resume = [&](const Job& job, const std::string& from) {
    RunCheckpoint found;
    const std::string message = ErrorOf([&] {
      WithSession(
          package, 2, job, data,
          [&](Session& session) {
            RunCheckpoint mine = Resume(from, session);
            if (session.transport.rank() == 0) found = mine;
          },
          /*resumes=*/true);
    });
    return std::pair(found.path.empty() ? "" : fs::path(found.path).filename().string(), message);
  };
  EXPECT_EQ(resume(SmallJob(), folder), (std::pair<std::string, std::string>("step-00000003", "")));
  Job other = SmallJob();
  other.seed = 5;
  EXPECT_EQ(resume(other, folder).second,
            "resuming on every rank: " + folder +
                "/step-00000003: was written with the seed 0, job.json says 5\n  resume with "
                "the same seed, so that no sample is seen twice in an epoch");
  other = SmallJob();
  other.optimizer.type = "adam";
  other.optimizer.kind = OptimizerJob::kAdam;
  EXPECT_EQ(resume(other, folder).second,
            "resuming on every rank: " + folder +
                "/step-00000003: was written with the optimizer sgd, job.json says adam\n  "
                "start over from its weights: pipewright weights merge makes a file for --weights");
  // One changed byte in a shard of the newest, which only rank 1 reads.
  const std::string shard = folder + "/step-00000003/module1.safetensors";
  std::string bytes = ReadFile(shard);
  bytes.back() = static_cast<char>(bytes.back() + 1);
  WriteFile(shard, bytes);
  EXPECT_EQ(resume(SmallJob(), folder), (std::pair<std::string, std::string>("step-00000002", "")));
  fs::remove_all(folder + "/step-00000002");
  const std::string none = resume(SmallJob(), folder).second;
  EXPECT_NE(none.find("module1.safetensors"), std::string::npos) << none;
  EXPECT_NE(none.find("\n  there is no other valid checkpoint: to start over, set checkpoint.to to "
                      "another folder"),
            std::string::npos)
      << none;
  EXPECT_EQ(resume(SmallJob(), TempPath("nowhere")), (std::pair<std::string, std::string>("", "")));
}

TEST(Resume, TakesWhatLatestNamesAlsoOnHostsApart) {
  const std::string folder = TempPath("went-back"), package = SmallPackage("went-back.pkg");
  Train(folder, SmallJob(), 3);
  WriteFile(folder + "/latest", "step-00000002\n");
  SmallData data;
  for (const bool apart : {false, true})
    WithSession(
        package, 2, SmallJob(), data,
        [&](Session& session) {
          EXPECT_EQ(Resume(folder, session, apart).path, folder + "/step-00000002") << apart;
        },
        /*resumes=*/true);
}

// The weights would be of no use, and the older checkpoints must stay.
TEST(Checkpointer, SavesNoNanThatTrainingMade) {
  const std::string folder = TempPath("nan");
  SmallData data;
  const std::string message = ErrorOf([&] {
    WithSession(SmallPackage("nan.pkg"), 2, SmallJob(), data, [&](Session& session) {
      CheckpointFolder to = OpenCheckpointFolder(folder, "to", false, session.transport);
      Checkpointer checkpointer(session, to);
      if (session.transport.rank() == 1)
        session.stages->Weight(1, "shift").detach()[2] = std::nan("");
      checkpointer.Told(1);
      checkpointer.Save(1, {});
      checkpointer.Finish();
    });
  });
  EXPECT_EQ(message.substr(0, message.find('\n')),
            "writing the checkpoint on rank 1: rank 1, checkpoint of step 1: \"shift\": holds nan, "
            "which training has made");
  EXPECT_EQ(ListCheckpoints(folder).size(), 0u);
}

TEST(CheckpointFolder, SaysWhoHasWhichShards) {
  CheckpointFolder folder;
  folder.path = "F";
  folder.first = {0, 0, 0};
  EXPECT_TRUE(folder.shared());
  EXPECT_EQ(folder.Describe({}), "");
  EXPECT_EQ(folder.Describe({"a", "a", "a"}), "");
  EXPECT_EQ(folder.Describe({"a", "a", "b"}), "checkpoints in F, which all hosts share");
  folder.first = {0, 0, 2};
  EXPECT_FALSE(folder.shared());
  EXPECT_EQ(folder.HostOf(2, {}), "of rank 2");
  EXPECT_EQ(folder.HostOf(1, {"a", "a", "b"}), "a");
  EXPECT_EQ(folder.HostOf(1, {"a", "a", "a"}), "a (rank 0)");  // containers of one name
  EXPECT_EQ(folder.HostOf(2, {"a", "a", "a"}), "a (rank 2)");
  const std::string text = folder.Describe({"a", "a", "b"});
  EXPECT_EQ(
      text.find("checkpoints in F, which the hosts do not share: each keeps the shards of its "
                "own ranks ("),
      0u)
      << text;
}

TEST(CheckpointFolder, IsLockedByOneRunAndMustBeEmptyForANewOne) {
  const std::string folder = TempPath("locked");
  RunThreads(1, [&](Transport& transport) {
    CheckHoldsNoCheckpoint(folder, "job.json");
    CheckpointFolder mine =
        OpenCheckpointFolder(folder, "job.json: checkpoint.to", false, transport);
    EXPECT_NE(mine.lock, nullptr);
    for (const auto& entry : fs::directory_iterator(folder))  // no rank's sign is left there
      EXPECT_EQ(entry.path().filename().string().find("-rank"), std::string::npos);
  });
  EXPECT_NE(ErrorOf([&] {
              RunThreads(1, [](Transport& t) {
                OpenCheckpointFolder("/dev/null/x", "the key", false, t);
              });
            }).find("the key: "),
            std::string::npos);
  fs::create_directories(folder + "/step-00000007");
  EXPECT_EQ(
      ErrorOf([&] {
        CheckHoldsNoCheckpoint(folder, "job.json");
      }).find(folder + ": holds what is left of checkpoints\n  " + folder + "/step-00000007: "),
      0u);
  const std::string whole = TempPath("whole-one");
  Train(whole, SmallJob(), 1);
  EXPECT_EQ(
      ErrorOf([&] { CheckHoldsNoCheckpoint(whole, "job.json"); }),
      whole + ": holds checkpoints already, up to " + whole +
          "/step-00000001\n  resume from it with --resume; to start over, name another folder, "
          "\"checkpoint\": {\"to\": \"FOLDER\"} in job.json, or remove what is in this one");
}

}  // namespace
}  // namespace pipewright
