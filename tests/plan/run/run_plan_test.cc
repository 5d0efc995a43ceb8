// Tests the plan of a run (run_plan.h) and the prediction of its steps (report/prediction.h).
#include "plan/run/run_plan.h"

#include <gtest/gtest.h>

#include "base/files/read_file.h"
#include "plan/plan_text.h"
#include "report/prediction.h"
#include "tests/error_text.h"
#include "tests/temp_folder.h"

namespace pipewright {

namespace {

const std::string kCli = TEST_DIR "/data/cli/", kPackage = kCli + "small.pkg";
const std::string kReplicas = kPackage + "/conf/dp_conf.json";
const std::string kShared = TEST_DIR "/data/kept/package";  // both modules use embed.weight
const std::string kSteps =
    "0RECV_B0<1#0,0F0,0SEND_F0>1,0F1,0SEND_F1>1,0B0,0RECV_B1<1#0,0B1,0STEP\n"
    "1RECV_F0<0#0,1RECV_F1<0#1,1F0,1B0,1SEND_B0>0,1F1,1B1,1SEND_B1>0,1STEP\n";

Job SmallJob(const std::vector<std::string>& changes = {}) {
  return ReadJob(kCli + "job.json", changes);
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
  const std::string where = kPackage + "/conf/mp_conf.json:3:26: ";
  EXPECT_EQ(ErrorOf([] { MakeRunPlan(kPackage, "", SmallJob(), 3, false); }),
            where +
                "the conf is for 2 ranks, not for 3 ranks\n  start 2 ranks; the package has 2 "
                "modules, and more ranks than that need replicas in the conf, or more cuts");
  EXPECT_EQ(ErrorOf([] { MakeRunPlan(kPackage, "", SmallJob(), 1, false); }),
            where +
                "the conf is for 2 ranks, not for 1 rank\n  start 2 ranks, or make a conf for 1 "
                "rank and run with --conf conf.json:\n    pipewright conf " +
                kPackage + " --ranks 1 -o conf.json");
}

TEST(RunPlan, ReadsThePlanOfAFile) {
  const std::string file = TempPath("plan.csv");
  Job job = SmallJob();
  job.plan = file;
  auto run = [&](const std::string& text) {
    WriteFile(file, text);
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
  EXPECT_EQ(ErrorOf([&] { run("0F0,0F1,2F0,2F1,2B0,2B1,0B0,0B1\n1F0,1B0,1F1,1B1\n"); }),
            file + ": the plan has 3 stages, the run has 2");
  EXPECT_EQ(ErrorOf([&] { run("0F0,0F1,0B0,0B1,0STEP,0STEP\n1F0,1B0,1F1,1B1,1STEP\n"); }),
            file +
                ": rank 0, action 4, 0STEP: rule \"step\": the rank has 2 optimizer steps of "
                "this stage, also rank 0, action 5, 0STEP, and others have one");
  EXPECT_EQ(ErrorOf([&] {
              run("0F0,0F1,0B0,0B1,0STEP,0F2,0F3,0B2,0B3,0STEP\n"
                  "1F0,1F1,1B0,1B1,1STEP,1F2,1F3,1B2,1B3,1STEP\n");
            }),
            file + ": the plan has 2 optimizer steps, the run has 1");
  // A whole plan and a schedule are validated.
  std::string whole = kSteps;
  whole.erase(whole.find("0SEND_F1>1,"), 11);
  EXPECT_EQ(
      ErrorOf([&] { run(whole); }),
      file + ": rank 0, action 3, 0F1: rule \"transfer\": 0SEND_F1>1 is missing on this rank");
  std::string still = kSteps;  // as other programs write it, which have no STEP
  for (const char* step : {",0STEP", ",1STEP"}) still.erase(still.find(step), 6);
  EXPECT_EQ(ErrorOf([&] { run(still); }),
            file +
                ": rule \"step\": no rank has an optimizer STEP, so the run would not train\n"
                "  at the end of each rank's line, add a REDUCE_GRAD for each of its stages that "
                "has replicas or shares a weight, and then a STEP for each of its stages; or leave "
                "out SEND and RECV: then all are added");
  EXPECT_EQ(ErrorOf([&] { run("0F0,0B0,0F1,0B1\n1F1,1B1,1F0,1B0\n"); }),
            file +
                ": rank 0, action 1, 0B0: rule \"deadlock\": the order can never finish: "
                "rank 0, action 1, 0B0 waits for rank 1, action 3, 1B0; "
                "rank 1, action 0, 1F1 waits for rank 0, action 2, 0F1");
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
}

TEST(RunPlan, AsynchronousSchedulesRefuseWhatTheyCannotRun) {
  auto error = [](const std::vector<std::string>& changes, const std::string& package = kPackage,
                  const std::string& conf = "") {
    std::vector<std::string> all = {"schedule=pipedream-2bw"};
    all.insert(all.end(), changes.begin(), changes.end());
    return ErrorOf([&] { MakeRunPlan(package, conf, SmallJob(all), 0, false); });
  };
  const std::string where = kCli + "job.json: schedule pipedream-2bw: ";
  EXPECT_EQ(error({}), "");
  EXPECT_EQ(error({}, kPackage, kReplicas),
            where + "it runs stage s on rank s\n  make such a conf: pipewright conf");
  EXPECT_EQ(error({"optimizer.clip_norm=1"}),
            where + "all ranks would have to meet in every step for clip_norm and loss_scale");
  EXPECT_EQ(error({"loss_scale=2"}),
            where + "all ranks would have to meet in every step for clip_norm and loss_scale");
  EXPECT_EQ(error({"accumulate=2"}),
            where + "it does not support \"accumulate\"\n  use more microbatches");
  EXPECT_EQ(error({"microbatches=1"}),
            where + "1 microbatch on 2 ranks, and a step needs as many as are in flight");
  EXPECT_EQ(error({}, kShared),
            where +
                "stages share weights, whose gradients would be of different steps\n  put the "
                "modules that share them into one stage");
}

TEST(RunPlan, SearchesAnOrderForZbAuto) {
  const RunPlan run = MakeRunPlan(kPackage, "", SmallJob({"schedule=zb-auto"}), 0, false);
  EXPECT_EQ(WritePlan(run.plan),
            "0RECV_B0<1#0,0F0,0SEND_F0>1,0F1,0SEND_F1>1,0I0,0RECV_B1<1#0,0W0,0I1,0W1,0STEP\n"
            "1RECV_F0<0#0,1RECV_F1<0#1,1F0,1I0,1SEND_B0>0,1F1,1I1,1SEND_B1>0,1W0,1W1,1STEP\n");
  const std::string costs = TempPath("costs.json");
  WriteFile(costs, R"({"stages": [{"F": 1, "I": 1, "W": 1, "activation": 8}]})");
  const Job small = SmallJob({"schedule=zb-auto", "memory=1", "costs=" + costs});
  EXPECT_EQ(ErrorOf([&] { MakeRunPlan(kPackage, "", small, 0, false); }),
            kCli +
                "job.json: memory: one microbatch at a time already needs 8 on rank 0, more than "
                "1\n  raise it, use more ranks, or let stages recompute (\"recompute\" in " +
                costs + ")");
}

TEST(RunPlan, NamesTheScheduleThatDoesNotFit) {
  const std::string misfit =
      ": schedule zbv: 2 stages on 2 ranks, and it needs 2 stages per rank\n  the nearest that "
      "works: a conf of 4 stages, on the ranks 0,1,1,0 (pipewright conf PACKAGE --ranks 2 "
      "--stages 4 --placement v)";
  Job job = SmallJob({"schedule=zbv"});
  EXPECT_EQ(ErrorOf([&] { MakeRunPlan(kPackage, "", job, 0, false); }), kCli + "job.json" + misfit);
  job = SmallJob();
  job.schedule = "zbv";  // as the option sets it
  EXPECT_EQ(ErrorOf([&] { MakeRunPlan(kPackage, "", job, 0, false); }), "--schedule" + misfit);
}

TEST(RunPlan, WarnsOfALongWarmUp) {
  const std::vector<std::string> warm = {
      R"(optimizer.lr_schedule={"type": "linear", "steps": 9, "warmup": 5})", "steps=3"};
  EXPECT_EQ(
      MakeRunPlan(kPackage, "", SmallJob(warm), 0, false).warnings,
      std::vector<std::string>{
          kCli + "job.json: optimizer.lr_schedule.warmup: 5 steps of warm-up are more than the "
                 "3 steps of the run: the learning rate never reaches \"lr\""});
  EXPECT_TRUE(MakeRunPlan(kPackage, "", SmallJob(warm), 0, true).warnings.empty());
}

TEST(RunPlan, WarnsOfARateThatBecomesZero) {
  auto warnings = [](const std::vector<std::string>& changes, int64_t steps) {
    Job job = SmallJob(changes);
    job.steps = steps;  // as the option sets it
    return MakeRunPlan(kPackage, "", job, 0, false).warnings;
  };
  const std::string falls = R"(optimizer.lr_schedule={"type": "linear"})";
  const std::string stays = R"(optimizer.lr_schedule={"type": "linear", "end": 0.1})";
  EXPECT_EQ(warnings({falls, "steps=3"}, 6),
            std::vector<std::string>{
                kCli + "job.json: optimizer.lr_schedule: the learning rate is 0 from step 4 on: "
                       "the schedule has 3 steps, and the run 6; set its \"steps\" to 6, or an "
                       "\"end\" above 0"});
  EXPECT_TRUE(warnings({falls, "steps=3"}, 4).empty());  // only in the last step
  EXPECT_TRUE(warnings({stays, "steps=3"}, 6).empty());
  EXPECT_TRUE(warnings({falls}, 6).empty());  // as long as the run
}

TEST(RunPlan, RecordsTheStagesThatRecompute) {
  auto recompute = [](const std::string& change) {
    return MakeRunPlan(kPackage, "", SmallJob({change}), 0, false).plan.recompute;
  };
  EXPECT_EQ(recompute("recompute=true"), (std::vector<int>{0, 1}));
  EXPECT_EQ(recompute(R"(recompute={"modules": [1]})"), std::vector<int>{1});
  EXPECT_EQ(recompute(R"(recompute={"stages": [0]})"), std::vector<int>{0});
}

TEST(RunPlan, KeepsWhatIsTrainedInMemory) {
  const std::string conf = TempPath("offload.json");
  WriteFile(conf, R"({"module_to_stage_map": [0, 1], "stage_to_rank_map": {"0": [0], "1": [0]},
                      "offload": {"stages": [0, 1]}})");
  const RunPlan sweep = MakeRunPlan(kPackage, conf, SmallJob(), 0, true);
  EXPECT_EQ(sweep.on_disk, (std::vector<std::vector<bool>>{{true}, {true, true}}));
  EXPECT_EQ(WritePlan(sweep.plan), "0LOAD,1LOAD,0F0,0F1,0EVICT,1F0,1F1,1EVICT\n");
  EXPECT_EQ(ErrorOf([&] { MakeRunPlan(kPackage, conf, SmallJob(), 0, false); }),
            conf +
                ": stage 0 is offloaded and has no frozen weights\n  what is trained stays in "
                "memory: freeze some of it (\"freeze\" in the job), or leave the stage out");
  const RunPlan frozen = MakeRunPlan(
      kPackage, conf, SmallJob({R"(freeze=["embedding.weight", "head.weight"])"}), 0, false);
  EXPECT_EQ(frozen.on_disk, (std::vector<std::vector<bool>>{{true}, {true, false}}));
  EXPECT_EQ(frozen.conf.offloaded_stages, (std::vector<int>{0, 1}));
  EXPECT_EQ(LearningStages(frozen.manifest, frozen.conf), (std::vector<bool>{false, true}));
  // The backward of stage 0 computes nothing, and needs no weights.
  EXPECT_EQ(WritePlan(frozen.plan),
            "0LOAD,1LOAD,0F0,1F0,1B0,0B0,0F1,0EVICT,1F1,1B1,1EVICT,0B1,0STEP,1STEP\n");
}

TEST(RunPlan, FollowsADeviceMap) {
  const std::string map = TempPath("map.json");
  WriteFile(map, R"({"embedding": 0, "head": "disk"})");
  const RunPlan run = MakeRunPlan(kPackage, "", SmallJob(), 0, true, map);
  EXPECT_EQ(run.conf.stage_to_ranks, (std::vector<std::vector<int>>{{0}, {0}}));
  EXPECT_EQ(run.on_disk, (std::vector<std::vector<bool>>{{false}, {true, true}}));
  EXPECT_EQ(ErrorOf([&] { MakeRunPlan(kPackage, "", SmallJob(), 0, false, map); }),
            map +
                ": \"head\" is on disk and trained\n  what is trained stays in memory: freeze it "
                "(\"freeze\" in the job), or put it on cpu or a numbered device");
}

TEST(RunPlan, KeepsOnlyTheOutputsThatAreWanted) {
  const std::vector<std::string> wanted = {"linear"}, unknown = {"logits"};
  EXPECT_EQ(MakeRunPlan(kPackage, "", SmallJob(), 0, true, "", wanted).manifest.outputs.size(), 1u);
  EXPECT_EQ(ErrorOf([&] { MakeRunPlan(kPackage, "", SmallJob(), 0, true, "", unknown); }),
            "--outputs: the model has no output \"logits\"\n  its outputs: linear");
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
  EXPECT_EQ(ErrorOf([] { PredictRun(ViewPackage(kPackage), SmallJob()); }),
            kPackage +
                ": has no profile, so its run cannot be predicted\n  measure one: pipewright "
                "profile " +
                kPackage + " --microbatch-size 1");
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
