// Runs steps of small sessions on two ranks, and checks what they write and refuse.
#include "runtime/session.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "formats/weights/checkpoint.h"
#include "runtime/checkpoint/final_weights.h"
#include "runtime/module/stored_weights.h"
#include "runtime/not_finite.h"
#include "runtime/output_locks.h"
#include "runtime/session_losses.h"
#include "runtime/weights.h"
#include "tests/error_text.h"
#include "tests/runtime/small_package.h"

namespace pipewright {
namespace {

const float kNan = std::numeric_limits<float>::quiet_NaN();

at::Tensor ReadFloats(const std::string& path, const std::string& name) {
  const SafetensorsFile file(path);
  const TensorInfo& info = file.At(name);
  at::Tensor values = at::empty(info.shape);
  file.Read(info, 0, static_cast<char*>(values.data_ptr()), values.nbytes());
  return values;
}

TEST(SessionLosses, AreGatheredAndAddedAsTheReferenceComputesThem) {
  Job job = SmallJob();
  job.accuracy = true;
  job.validation.every = 1;
  SmallData data;
  WithSession(SmallPackage("losses.pkg"), 2, job, data, [&](Session& session) {
    SmallReference reference;
    for (int step = 0; step < 2; ++step) {
      const std::vector<double> expected = reference.Step(data, job);
      session.Step(data, step);
      if (session.transport.rank() == 0) {
        EXPECT_TRUE(session.losses.empty());
        continue;
      }
      ASSERT_EQ(session.losses.size(), 2u);
      for (int m : {0, 1}) EXPECT_NEAR(session.losses[m], expected[m], 1e-6);
      EXPECT_EQ(session.terms[0][0].count, 6);
    }
    Evaluation evaluation;
    session.Evaluate(data, 0, evaluation);
    EXPECT_EQ(evaluation.known(), session.transport.rank() == 1);
    const std::vector<double> after = reference.Step(data, job);
    if (evaluation.known()) {
      EXPECT_EQ(evaluation.losses[0].targets, 12);
      EXPECT_NEAR(evaluation.mean(), (after[0] + after[1]) / 2, 1e-6);
    }
  });
}

TEST(SessionLosses, AValidationThatIsNotFiniteDoesNotEndTheTraining) {
  Job job = SmallJob();
  job.validation.every = 1;
  SmallData data, spoilt;
  spoilt.target[3][0] = kNan;
  WithSession(SmallPackage("validated.pkg"), 2, job, data, [&](Session& session) {
    Evaluation evaluation;
    session.Evaluate(spoilt, 0, evaluation);
    EXPECT_EQ(evaluation.known(), session.transport.rank() == 1);
    if (evaluation.known()) {
      EXPECT_TRUE(std::isnan(evaluation.mean()));
    }
    session.Step(data, 0);
    EXPECT_FALSE(session.outcome.bad_loss);
  });
}

TEST(Session, ChecksSmallerMicrobatchesBeforeAnythingRuns) {
  struct Uneven : SmallData {
    std::vector<std::vector<TensorSpec>> SmallerSpecs() override {
      const std::vector<TensorSpec> unfit = {{at::kFloat, {65, 3}, true}};
      return {unfit};
    }
  } data;
  const std::string error = ErrorOf([&] {
    WithSession(SmallPackage("uneven.pkg"), 2, SmallJob(), data, [](Session&) { ADD_FAILURE(); });
  });
  EXPECT_TRUE(
      error.starts_with("reading on every rank: input \"x\": has sizes [65, 3]; its "
                        "dimension 0 was exported for 1 to 64"))
      << error;
}

TEST(SessionLosses, ErrorsNameTheOutputs) {
  SmallData data;
  auto error = [&](const std::function<void(Job&)>& change) {
    Job job = SmallJob();
    change(job);
    return ErrorOf([&] { WithSession(SmallPackage("e.pkg"), 2, job, data, [](Session&) {}); });
  };
  EXPECT_EQ(error([](Job& job) { job.losses[0].output_name = "zz"; }),
            "reading on every rank: job.json: loss.output: the model has no output \"zz\" (did you "
            "mean \"z\"?)\n  its "
            "outputs: z");
  EXPECT_EQ(error([](Job& job) { job.losses.push_back(job.losses[0]), job.losses[1].output = 1; }),
            "reading on every rank: job.json: loss[1].output: the model has no output 1\n  its "
            "outputs: z");
  EXPECT_EQ(error([](Job& job) { job.losses[0].kind = LossJob::kOutput; }),
            "reading on every rank: job.json: loss.output: output 0 of the model, z, has sizes [2, "
            "3]; a loss is one number"
            "\n  have it compared with targets: {\"type\": \"cross_entropy\", \"mse\" or another, "
            "\"output\": \"z\"}");
  EXPECT_EQ(error([](Job& job) { job.losses[0].kind = LossJob::kCrossEntropy; }),
            "reading on every rank: target: cross_entropy needs an int64 target: output float32 "
            "[2, 3], target float32 "
            "[2, 3]\n  save the targets as int64");
}

TEST(NotFinite, NamesTheFirstThatIsNotFinite) {
  auto error = [&](const std::function<void(Session&, SmallData&)>& spoil, Job job = SmallJob()) {
    SmallData data;
    const std::string message = ErrorOf([&] {
      WithSession(SmallPackage("finite.pkg"), 2, job, data, [&](Session& session) {
        if (session.transport.rank() == 1) spoil(session, data);
        session.transport.AllGather("");
        session.Step(data, 0);
      });
    });
    return message.substr(0, message.find('\n'));
  };
  EXPECT_EQ(error([](Session&, SmallData&) {}), "");
  EXPECT_EQ(error([](Session&, SmallData& data) { data.target[3][0] = kNan; }),
            "step 1, rank 1, stage 1, microbatch 1: the loss is nan");
  EXPECT_EQ(error([](Session&, SmallData& data) {
              data.x[2][0] = kNan, data.spoiled = "sample 2 of x holds nan";
            }),
            "step 1, microbatch 0: sample 2 of x holds nan");
  EXPECT_EQ(error([](Session&, SmallData& data) { data.x[2][0] = 2e38f; }),
            "step 1, rank 1, stage 1, microbatch 1: the loss is inf");
  EXPECT_EQ(error([](Session&, SmallData& data) { data.x[2][2] = 3e38f; }),
            "step 1, rank 0, stage 0, microbatch 1: value \"y\" holds inf, the first to do so");
  EXPECT_EQ(error([](Session& session, SmallData&) {
              session.stages->Weight(1, "shift").detach()[0] = kNan;
            }),
            "step 1, rank 1, stage 1: weight \"shift\" holds nan, which an earlier step made");
  Job ignoring = SmallJob();
  ignoring.stop_on_nan = false;
  EXPECT_EQ(error([](Session&, SmallData& data) { data.target[3][0] = kNan; }, ignoring), "");
}

TEST(NotFinite, OfTheModelItselfMayBeSaved) {
  SmallData data;
  const float inf = std::numeric_limits<float>::infinity();
  WithSession(
      SmallPackage("own.pkg", {0, 0}, {-inf, 0, 0}), 1, SmallJob(), data, [&](Session& session) {
        auto saved = [&](const std::string& name, std::vector<float> values) {
          const std::string error = ErrorOf([&] { CheckSaved(session, name, at::tensor(values)); });
          return error.substr(0, error.find('\n'));
        };
        EXPECT_EQ(saved("shift", {-inf, 1, 2}), "");
        EXPECT_EQ(saved("master/shift", {-inf, 1, 2}), "");
        EXPECT_EQ(saved("shift", {-inf, 1, inf}), "\"shift\": holds inf, which training has made");
        EXPECT_EQ(saved("scale", {kNan, 1, 1}), "\"scale\": holds nan, which training has made");
        EXPECT_EQ(saved("momentum_buffer/shift", {-inf, 0, 0}),
                  "\"momentum_buffer/shift\": holds -inf, which training has made");
        CheckSavedWeights(session);
        session.stages->Weight(0, "scale").detach()[1] = kNan;
        EXPECT_EQ(ErrorOf([&] { CheckSavedWeights(session); }).find("\"scale\": holds nan"), 0u);
        // The losses of a step, in the order of the microbatches.
        session.stages->terms() = {{{1.}, {kNan}}, {{2.}, {kNan}}};
        const std::optional<BadLoss> bad = FindBadLoss(session, 7);
        ASSERT_TRUE(bad);
        EXPECT_EQ(std::tuple(bad->minibatch, bad->microbatch, bad->loss), std::tuple(7, 1, 0));
      });
}

TEST(Weights, OfAllRanksAreInOneFileAndAreReadBack) {
  const std::string file = TempPath("all.safetensors"), gradients = TempPath("grad.safetensors");
  SmallData data;
  SmallReference reference;
  reference.Step(data, SmallJob());
  WithSession(SmallPackage("save.pkg"), 2, SmallJob(), data, [&](Session& session) {
    session.Step(data, 0);
    session.Save(file);
    session.SaveGradients(gradients);
  });
  EXPECT_TRUE(Close(ReadFloats(file, "scale"), reference.scale));
  EXPECT_TRUE(Close(ReadFloats(file, "shift"), reference.shift));
  EXPECT_TRUE(Close(ReadFloats(gradients, "scale"), reference.scale_gradient));
  EXPECT_TRUE(Close(ReadFloats(gradients, "shift"), reference.shift_gradient));
  WithSession(SmallPackage("load.pkg"), 2, SmallJob(), data, [&](Session& session) {
    const LoadedWeights loaded = LoadWeights(file, session.run.manifest, *session.stages);
    EXPECT_TRUE(loaded.foreign.empty() && loaded.edited.empty());
    const int rank = session.transport.rank();
    const std::string name = rank ? "shift" : "scale";
    EXPECT_TRUE(at::equal(session.stages->Weight(rank, name), ReadFloats(file, name)));
    EXPECT_FALSE(session.stages->Weight(1 - rank, rank ? "scale" : "shift").defined());
  });
  const at::Tensor two = at::ones({2});
  const std::string_view bytes(static_cast<const char*>(two.data_ptr()), 8);
  WriteSafetensors(file, {{"scale", "F32", {2}, bytes}, {"other", "F32", {2}, bytes}});
  EXPECT_EQ(
      ErrorOf([&] {
        WithSession(SmallPackage("load.pkg", {0, 0}), 1, SmallJob(), data, [&](Session& session) {
          LoadWeights(file, session.run.manifest, *session.stages);
        });
      }),
      file +
          ": \"scale\" is F32 [2], the package's is float32 [3]\n  it is of another model, or "
          "names differ: pipewright weights list " +
          file);
}

TEST(Weights, WhichAFileGives) {
  const std::string file = TempPath("few.safetensors");
  const std::string_view bytes("abcd", 4);
  WriteSafetensors(file, {{"a", "F32", {1}, bytes}}, {{"b", "a"}});
  const Checkpoint checkpoint = OpenCheckpoint(file);
  const Manifest manifest = SmallManifest();
  auto takes = [&](const WeightInfo& weight) { return IsTakenFrom(checkpoint, manifest, weight); };
  EXPECT_TRUE(takes({"a", WeightKind::kParameter, "float32", {1}}));
  EXPECT_TRUE(takes({"missing", WeightKind::kParameter, "float32", {1}}));  // which loading then refuses
  EXPECT_TRUE(takes({"b", WeightKind::kParameter, "float32", {1}}));
  const WeightInfo shared = {"b", WeightKind::kBuffer, "float32", {1}};  // with "a"
  EXPECT_TRUE(takes(shared));
  EXPECT_EQ(StoredWeight(checkpoint, manifest, shared).name, "a");
  EXPECT_FALSE(takes({"b", WeightKind::kBuffer, "float32", {}}));  // a part of "a"
  EXPECT_FALSE(takes({"a", WeightKind::kConstant, "float32", {1}}));
  EXPECT_FALSE(takes({"a", WeightKind::kBuffer, "float32", {1}, false, false}));  // not persistent
}

TEST(FinalWeights, AreSavedElsewhereIfTheirPlaceFails) {
  Job job = SmallJob();
  SmallData data;
  EXPECT_EQ(
      WarningsOfLoss(job, SmallManifest()),
      std::vector<std::string>{"job.json has neither \"save\" nor \"checkpoint\": the trained "
                               "weights will be lost at the end\n  keep them: \"save\": "
                               "\"FILE.safetensors\" in the job (or --save)"});
  auto end = [&](const std::string& save, const std::string& checkpoint) {
    std::vector<std::string> said(2);
    job.save = save;
    WithSession(SmallPackage("end.pkg"), 2, job, data, [&](Session& session) {
      said[session.transport.rank()] = SaveFinalWeights(session, checkpoint);
    });
    EXPECT_EQ(said[0], said[1]);
    return said[0];
  };
  const std::string file = TempPath("end.safetensors");
  EXPECT_EQ(end(file, ""), "");
  EXPECT_TRUE(at::equal(ReadFloats(file, "scale"), at::tensor({1.f, 2.f, 3.f})));
  EXPECT_TRUE(WarningsOfLoss(job, SmallManifest()).empty());
  Manifest huge = SmallManifest();
  huge.modules[0].held[0].shape = {int64_t{1} << 50};
  ASSERT_EQ(WarningsOfLoss(job, huge).size(), 1u);
  EXPECT_EQ(WarningsOfLoss(job, huge)[0].find(file + " will take 4 PiB at the end, and its disk "
                                                     "has only "),
            0u)
      << WarningsOfLoss(job, huge)[0];
  const std::string nowhere = "/dev/null/folder/w.safetensors";
  const std::string kept = end(nowhere, "CKPT");
  EXPECT_NE(kept.find("\n  the checkpoint has the weights: pipewright weights merge CKPT -o "
                      "FILE.safetensors"),
            std::string::npos)
      << kept;
  const std::string said = end(nowhere, ""), start = "the weights were saved in ";
  const size_t at = said.find(start) + start.size(), stop = said.find(" instead: move them from");
  ASSERT_NE(stop, std::string::npos) << said;
  const std::string elsewhere = said.substr(at, stop - at);
  EXPECT_TRUE(at::equal(ReadFloats(elsewhere, "shift"), at::zeros({3})));
  std::filesystem::remove_all(std::filesystem::path(elsewhere).parent_path());
}

TEST(OutputLocks, OneRunPerFileAndFolder) {
  const std::string file = TempPath("out.json"), link = TempPath("link.json");
  EXPECT_EQ(LockFile(""), nullptr);
  EXPECT_EQ(LockFile("/dev/null"), nullptr);
  WriteFile(file, "");
  std::filesystem::create_symlink(file, link);
  std::unique_ptr<OwnerLock> mine = LockFile(file);
  ASSERT_NE(mine, nullptr);
  for (const std::string& name : {file, link}) {
    const std::string error = ErrorOf([&] { LockFile(name); });
    EXPECT_EQ(error.find(name + ": is written by another run: "), 0u) << error;
    EXPECT_NE(error.find("\n  name another file, or wait until that run has ended"),
              std::string::npos)
        << error;
  }
  mine.reset();
  EXPECT_NE(LockFile(link), nullptr);
  RunThreads(1, [&](Transport& transport) {
    const std::string folder = TempPath("locks");
    std::filesystem::create_directories(folder);
    std::unique_ptr<OwnerLock> first = LockFolder(folder, false, transport);
    const std::string error = ErrorOf([&] { LockFolder(folder, false, transport); });
    EXPECT_EQ(error.find(folder + ": another run writes its checkpoints there: "), 0u) << error;
    first.reset();
    EXPECT_NE(LockFolder(folder, false, transport), nullptr);
  });
}

}  // namespace
}  // namespace pipewright
