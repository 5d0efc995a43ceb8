// Tests the plan of a run (run_plan.h) and the prediction of its steps (report/prediction.h).
#include "plan/run/run_plan.h"

#include <gtest/gtest.h>

#include <fstream>

#include "base/error.h"
#include "plan/plan_text.h"
#include "report/prediction.h"
#include "tests/temp_folder.h"

namespace pipewright {

namespace {

const std::string kCli = TEST_DIR "/data/cli/", kPackage = kCli + "small.pkg";
const std::string kReplicas = kPackage + "/conf/dp_conf.json";
const std::string kSteps =
    "0RECV_B0<1#0,0F0,0SEND_F0>1,0F1,0SEND_F1>1,0B0,0RECV_B1<1#0,0B1,0STEP\n"
    "1RECV_F0<0#0,1RECV_F1<0#1,1F0,1B0,1SEND_B0>0,1F1,1B1,1SEND_B1>0,1STEP\n";

Job SmallJob(const std::vector<std::string>& changes = {}) {
  return ReadJob(kCli + "job.json", changes);
}

template <class F>
std::string ErrorOf(F make) {
  try {
    make();
  } catch (const Error& e) {
    return e.what();
  }
  return "";
}

}  // namespace

TEST(RunPlan, LowersTheJobsSchedule) {
  const RunPlan run = MakeRunPlan(kPackage, "", SmallJob(), 0, false);
  EXPECT_EQ(WritePlan(run.plan), kSteps);
  EXPECT_EQ(run.conf.module_to_stage, (std::vector<int>{0, 1}));
  EXPECT_EQ(run.graph.ranks_of, (std::vector<std::vector<int>>{{0}, {1}}));
  EXPECT_EQ(run.on_disk, (std::vector<std::vector<bool>>{{false}, {false, false}}));
  EXPECT_TRUE(run.warnings.empty());
  EXPECT_EQ(LearningStages(run.manifest, run.conf), (std::vector<bool>{true, true}));
}

TEST(RunPlan, SweepsForwardOnly) {
  const std::string sweep =
      "0F0,0SEND_F0>1,0F1,0SEND_F1>1\n1RECV_F0<0#0,1RECV_F1<0#1,1F0,1F1\n";
  EXPECT_EQ(WritePlan(MakeRunPlan(kPackage, "", SmallJob(), 2, true).plan), sweep);
  const Job job = SmallJob();
  EXPECT_EQ(WritePlan(MakeForwardPlan(job, MakeRunPlan(kPackage, "", job, 0, false))), sweep);
}

TEST(RunPlan, RefusesAnotherNumberOfRanks) {
  const std::string error =
      ErrorOf([] { MakeRunPlan(kPackage, "", SmallJob(), 3, false); });
  EXPECT_TRUE(error.starts_with(kPackage + "/conf/mp_conf.json:3:")) << error;
  EXPECT_NE(error.find("the conf is for 2 ranks, not for 3 ranks"), std::string::npos) << error;
}

TEST(RunPlan, ReadsThePlanOfAFile) {
  const std::string file = TempPath("plan.csv");
  Job job = SmallJob();
  job.plan = file;
  auto run = [&](const std::string& text) {
    std::ofstream(file) << text;
    return WritePlan(MakeRunPlan(kPackage, "", job, 0, false).plan);
  };
  EXPECT_EQ(run(kSteps), kSteps);
  EXPECT_EQ(run("0F0,0F1,0B0,0B1\n1F0,1B0,1F1,1B1\n"), kSteps);  // a schedule is lowered
  EXPECT_EQ(ErrorOf([&] { run("0F0,0B0\n1F0,1B0\n"); }),
            file + ": the plan has 1 microbatches, the run has 2");
  EXPECT_EQ(ErrorOf([&] { run("0F0,0F1,1F0,1F1,1B0,1B1,0B0,0B1\n"); }),
            file + ": the plan has 1 ranks, the run has 2");
  EXPECT_EQ(ErrorOf([&] { run("0F0,0F1,0B0,0B7\n1F0,1B0,1F1,1B1\n"); }),
            file + ": rank 0, action 3, 0B7: rule \"range\": the run has 2 stages and "
                   "2 microbatches");
}

TEST(RunPlan, AsynchronousSchedulesKeepOlderWeights) {
  const Job plain = SmallJob(), two = SmallJob({"schedule=pipedream-2bw", "steps=3"});
  EXPECT_FALSE(IsAsynchronous(plain));
  EXPECT_EQ(OlderVersions(plain), 0);
  EXPECT_TRUE(IsAsynchronous(two));
  EXPECT_EQ(OlderVersions(two), 1);
  const RunPlan run = MakeRunPlan(kPackage, "", two, 0, false);
  EXPECT_EQ(run.plan.steps, 3);
  EXPECT_EQ(MakeAsynchronousPlan(two, run, 2).steps, 2);
  EXPECT_NE(ErrorOf([&] { MakeRunPlan(kPackage, kReplicas, two, 0, false); })
                .find("it runs stage s on rank s"),
            std::string::npos);
}

TEST(RunPlan, StepsPauseAtCheckpointsAndValidations) {
  Job job;
  job.steps = 10;
  EXPECT_EQ(StepsInARow(job, 0), 10);
  EXPECT_EQ(StepsInARow(job, 9), 1);
  job.checkpoint.every = 4;  // without a folder, none is written
  EXPECT_EQ(StepsInARow(job, 0), 10);
  job.checkpoint.folder = "c";
  job.validation.every = 6;
  std::vector<int64_t> pauses;
  for (int64_t step = 0; step < job.steps;) pauses.push_back(step += StepsInARow(job, step));
  EXPECT_EQ(pauses, (std::vector<int64_t>{4, 6, 8, 10}));
  job = {};
  job.steps = 2500;
  EXPECT_EQ(StepsInARow(job, 0), 1000);
}

TEST(Prediction, NeedsAProfile) {
  EXPECT_NE(ErrorOf([] { PredictRun(ViewPackage(kPackage), SmallJob()); })
                .find(kPackage + ": has no profile, so its run cannot be predicted"),
            std::string::npos);
}

TEST(Prediction, AddsTheTimesOfEachStage) {
  const PackageView view = ViewPackage(TEST_DIR "/data/kept/package");
  ASSERT_TRUE(view.profile);
  const Job job = ReadJob(TEST_DIR "/data/kept/job.json");
  const Prediction prediction = PredictRun(view, job);
  EXPECT_EQ(prediction.plan.stages, 2);
  EXPECT_EQ(prediction.plan.microbatches, 3);
  ASSERT_EQ(prediction.costs.stages.size(), 2u);
  double forward[2] = {0, 0};
  for (const ProfileNode& node : view.profile->nodes)
    forward[node.module] += node.forward.median * 1e6;
  for (int s : {0, 1}) EXPECT_NEAR(prediction.costs.stages[s].F, forward[s], 1e-6 * forward[s]);
  ASSERT_EQ(prediction.notes.size(), 2u);
  EXPECT_EQ(prediction.notes[1].substr(0, 66),
            "the profile has microbatches of 4 samples, but the job has 3: pipe");
}

}  // namespace pipewright
