// Runs the stages of a rank by hand, and compares messages, losses and weights with plain tensors.
#include "runtime/stage/stage.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <limits>

#include "runtime/exec/message_size.h"
#include "runtime/module/messages.h"
#include "runtime/recorded/choose_body.h"
#include "runtime/weights.h"
#include "tests/error_text.h"
#include "tests/runtime/small_package.h"

namespace pipewright {
namespace {

constexpr float kNan = std::numeric_limits<float>::quiet_NaN();

// Microbatches of two rows, one after the other; the last row may be alone.
struct Rows : Microbatches {
  at::Tensor x = at::arange(12, at::kFloat).view({4, 3}).div(8);
  at::Tensor target = at::ones({8, 3});
  int microbatches = 2;
  double weight = 1;
  std::vector<std::pair<int, at::Tensor>> outputs;  // microbatch and value
  std::vector<int64_t> stepped;

  void KeepThreeRows() { x = x.slice(0, 0, 3), target = target.slice(0, 0, 3); }
  at::Tensor Of(const at::Tensor& all, int64_t minibatch, int microbatch) const {
    const int64_t first = 2 * (minibatch * microbatches + microbatch);
    return all.slice(0, first, first + 2);
  }
  std::vector<TensorSpec> Specs(int64_t minibatch, int microbatch) override {
    return {{at::kFloat, Of(x, minibatch, microbatch).sizes().vec(), true}};
  }
  at::Tensor Input(int i, int64_t minibatch, int microbatch) override {
    return Of(i < 0 ? target : x, minibatch, microbatch);
  }
  double LossWeight(int, int64_t, int) override { return weight; }
  std::string NotFinite(int64_t minibatch, int microbatch) override {
    return "sample " + std::to_string(2 * (minibatch * microbatches + microbatch)) + " of x is bad";
  }
  void Output(int output, int microbatch, const c10::IValue& value) override {
    EXPECT_EQ(output, 0);
    outputs.emplace_back(microbatch, value.toTensor().detach().clone());
  }
  void Stepped(int64_t steps) override { stepped.push_back(steps); }
};

// y = x * (1, 2, 3), z = y + shift, and the stages of one rank of it.
struct Stages {
  SessionOptions options;
  Job job = SmallJob();
  RunPlan run;
  Plan none;
  std::vector<bool> recompute = {false, false};
  std::unique_ptr<ShapeCache> shapes;
  Rows data;
  std::unique_ptr<TorchStages> body;

  explicit Stages(const std::string& name, const std::vector<int>& ranks = {0, 0}) {
    options.package = SmallPackage(name, ranks);
    options.keep_gradients = true;
    run.manifest = SmallManifest();
    run.conf = ReadConf(options.package + "/conf/mp_conf.json");
    run.graph = MakeStageGraph(run.manifest, run.conf);
  }
  void Open(Transport& transport) {
    shapes = std::make_unique<ShapeCache>(options.package, run.manifest);
    body = std::make_unique<TorchStages>(
        StageSettings{options, job, run, none, recompute, *shapes, transport});
    LoadPackageWeights(options.package, run.manifest, *body, {{false}, {false}});
  }
  // Runs F of both stages, and returns the message between them.
  at::Tensor Forward(int microbatch) {
    std::vector<Bundle> sent = body->Forward(0, microbatch, {});
    EXPECT_EQ(sent.size(), 1u);
    const at::Tensor y = ReadMessage(sent.at(0)).at(0).clone();
    EXPECT_TRUE(body->Forward(1, microbatch, std::move(sent)).empty());
    return y;
  }
  // Does the same for B, or for I and W.
  at::Tensor Backward(int microbatch, bool halves) {
    const ActionKind kind = halves ? ActionKind::kInputGrad : ActionKind::kBackward;
    std::vector<Bundle> sent = body->Backward(kind, 1, microbatch, {});
    EXPECT_EQ(sent.size(), 1u);
    const at::Tensor gradient = ReadMessage(sent.at(0)).at(0).clone();
    EXPECT_TRUE(body->Backward(kind, 0, microbatch, std::move(sent)).empty());
    if (halves) {
      for (int stage : {0, 1})
        EXPECT_TRUE(body->Backward(ActionKind::kWeightGrad, stage, microbatch, {}).empty());
    }
    return gradient;
  }
};

void OnOneRank(const std::function<void(Transport&)>& act) { RunThreads(1, act); }

// The second microbatch has one row, and each microbatch counts the same.
TEST(TorchStages, ComputeWhatPlainTensorsDo) {
  const at::Tensor scale = at::tensor({1.f, 2.f, 3.f});
  for (const bool halves : {false, true})
    for (const bool again : {false, true})
      for (const double weight : {1., 3.})
        OnOneRank([&](Transport& transport) {
          SCOPED_TRACE(testing::Message() << halves << again << weight);
          Stages stages("plain.pkg");
          stages.recompute = {again, again};
          stages.job.losses[0].weight = weight / 2;
          stages.data.weight = 2;
          stages.data.KeepThreeRows();
          stages.Open(transport);
          TorchStages& body = *stages.body;
          body.updater().Begin(0, 2);
          body.SetStep(stages.data, 0);
          at::Tensor for_scale = at::zeros({3}), for_shift = at::zeros({3});
          std::vector<double> losses;
          for (int m : {0, 1}) {
            const at::Tensor x = stages.data.Input(0, 0, m), y = x * scale;
            const at::Tensor off = y - 1, gradient = weight * 2 * off / off.numel();
            EXPECT_TRUE(at::equal(stages.Forward(m), y));
            ASSERT_EQ(stages.data.outputs.size(), static_cast<size_t>(m + 1));
            EXPECT_EQ(stages.data.outputs[m].first, m);
            EXPECT_TRUE(at::equal(stages.data.outputs[m].second, y));  // the shift is zero
            // Weights are no part of the loss that is reported.
            EXPECT_NEAR(body.terms()[0][m].loss, off.square().mean().item<double>(), 1e-6);
            EXPECT_EQ(body.terms()[0][m].count, 0);  // not asked for
            EXPECT_TRUE(Close(stages.Backward(m, halves), gradient));
            for_scale += (gradient * x).sum(0) / 2;
            for_shift += gradient.sum(0) / 2;
          }
          for (int stage : {1, 0}) body.Step(stage);
          EXPECT_TRUE(at::equal(body.Weight(0, "scale"), scale));  // until all ranks agree
          const StepOutcome outcome = body.updater().Agree(transport, false);
          EXPECT_FALSE(outcome.not_finite || outcome.skipped);
          body.updater().Commit(outcome);
          EXPECT_TRUE(Close(body.LastGradient(0, "scale"), for_scale));
          EXPECT_TRUE(Close(body.LastGradient(1, "shift"), for_shift));
          EXPECT_TRUE(Close(body.Weight(0, "scale"), scale - 0.25 * for_scale));
          EXPECT_TRUE(Close(body.Weight(1, "shift"), -0.25 * for_shift));
        });
}

TEST(TorchStages, MessagesHaveTheSizesOfTheirMicrobatch) {
  OnOneRank([](Transport& transport) {
    Stages stages("sizes.pkg");
    stages.data.KeepThreeRows();
    stages.Open(transport);
    TorchStages& body = *stages.body;
    body.SetStep(stages.data, 0);
    const int64_t layout = LayoutBytes(2);
    for (int m : {0, 1}) {
      const int64_t bytes = 4 * 3 * (m == 0 ? 2 : 1) + layout;
      const Bundle sent = body.Forward(0, m, {}).at(0);
      for (bool backward : {false, true}) {
        EXPECT_EQ(body.MessageBytes(0, m, backward), bytes);
        const Bundle room = body.Allocate(0, m, backward, 0, false);
        EXPECT_EQ(SizeMismatch(sent, room), "");
        EXPECT_EQ(TotalBytes(room), static_cast<size_t>(bytes));
      }
    }
    EXPECT_TRUE(body.groups().empty());
    EXPECT_EQ(body.offloaded(), nullptr);
  });
}

TEST(TorchStages, HoldTheWeightsOfTheirRank) {
  RunThreads(2, [](Transport& transport) {
    const int rank = transport.rank();
    Stages stages("ranks.pkg", {0, 1});
    stages.Open(transport);
    const TorchStages& body = *stages.body;
    EXPECT_TRUE(body.Holds(rank));
    EXPECT_FALSE(body.Holds(1 - rank));
    EXPECT_FALSE(body.Holds(2));
    EXPECT_EQ(body.Weight(0, "scale").defined(), rank == 0);
    EXPECT_EQ(body.Weight(1, "shift").defined(), rank == 1);
    EXPECT_FALSE(body.LastGradient(1 - rank, rank ? "scale" : "shift").defined());
    EXPECT_EQ(body.loss_stages(), std::vector<int>{1});
    EXPECT_EQ(body.has_losses(), rank == 1);
    const std::string error = "module" + std::to_string(rank) + ": holds no weight \"bias\"";
    EXPECT_EQ(ErrorOf([&] { body.Weight(rank, "bias"); }), error);
    EXPECT_EQ(ErrorOf([&] { body.LastGradient(rank, "bias"); }), error);
    EXPECT_FALSE(body.Weight(1 - rank, "bias").defined());
    const std::map<int, BodyState> bodies = body.Bodies();
    ASSERT_EQ(bodies.size(), 1u);
    EXPECT_TRUE(bodies.at(rank).asked);  // autograd, by the job
    EXPECT_FALSE(bodies.at(rank).lists);
  });
}

TEST(TorchStages, CountTheTargetsInEvaluationsAndWhereTheJobAsks) {
  OnOneRank([](Transport& transport) {
    Stages stages("counts.pkg");
    stages.data.KeepThreeRows();
    stages.job.stop_on_nan = false;
    stages.Open(transport);
    TorchStages& body = *stages.body;
    auto counts = [&] {
      body.SetStep(stages.data, 0);
      for (int m : {0, 1}) stages.Forward(m);
      return std::pair(body.terms()[0][0].count, body.terms()[0][1].count);
    };
    EXPECT_EQ(counts(), std::pair(int64_t{0}, int64_t{0}));
    body.SetTraining(false);
    EXPECT_EQ(counts(), std::pair(int64_t{6}, int64_t{3}));
    body.SetTraining(true);
    EXPECT_EQ(counts(), std::pair(int64_t{0}, int64_t{0}));
    stages.job.accuracy = true;
    EXPECT_EQ(counts(), std::pair(int64_t{6}, int64_t{3}));
  });
}

TEST(TorchStages, StopAtALossThatIsNotFinite) {
  OnOneRank([](Transport& transport) {
    auto error = [&](bool training, const std::function<void(Stages&)>& change, float bad = kNan) {
      Stages stages("loss.pkg");
      change(stages);
      stages.data.target[2][1] = bad;
      stages.Open(transport);
      if (stages.options.training) stages.body->SetTraining(training);
      stages.body->SetStep(stages.data, 0);
      stages.Forward(0);
      const std::string message = ErrorOf([&] { stages.Forward(1); });
      EXPECT_EQ(stages.body->StopsAtLoss(), !message.empty());
      return message;
    };
    auto nothing = [](Stages&) {};
    auto evaluates = [](Stages& stages) { stages.options.training = false; };
    auto ignores = [](Stages& stages) { stages.options.training = stages.job.stop_on_nan = false; };
    auto overlaps = [](Stages& stages) { stages.job.schedule = "pipedream"; };
    const std::string cure = std::string("\n  ") + kNotFiniteCure;
    EXPECT_EQ(error(true, nothing), "");  // the ranks are told when they agree on the step
    EXPECT_EQ(error(false, evaluates), "loss: is nan: sample 2 of x is bad" + cure);
    EXPECT_EQ(error(false, evaluates, -std::numeric_limits<float>::infinity()),
              "loss: is inf: sample 2 of x is bad" + cure);
    EXPECT_EQ(error(true, overlaps), "loss: is nan: sample 2 of x is bad" + cure);
    EXPECT_EQ(error(false, nothing), "");  // a validation
    EXPECT_EQ(error(false, overlaps), "");
    EXPECT_EQ(error(false, ignores), "");
  });
}

TEST(TorchStages, WatchForTheFirstValueThatIsNotFinite) {
  OnOneRank([](Transport& transport) {
    Stages stages("watch.pkg");
    stages.Open(transport);
    TorchStages& body = *stages.body;
    auto seen = [&](const std::function<void(at::Tensor&)>& spoil, int64_t step = 0) {
      stages.data.x = at::ones({8, 3});
      spoil(stages.data.x);
      body.SetStep(stages.data, step);
      for (int m : {1, 0}) stages.Forward(m);  // in any order
      const std::optional<BadValue>& bad = body.bad_value();
      if (!bad) return std::string();
      return std::to_string(bad->minibatch) + "," + std::to_string(bad->microbatch) + "," +
             std::to_string(bad->module) + "," + bad->name + "," + bad->what;
    };
    const float inf = std::numeric_limits<float>::infinity();
    EXPECT_EQ(seen([](at::Tensor& x) { x[0][0] = kNan; }), "");  // not asked for
    auto watched = [&](const std::function<void(at::Tensor&)>& spoil, int64_t step = 0) {
      body.Watch();
      return seen(spoil, step);
    };
    EXPECT_EQ(watched([](at::Tensor&) {}), "");
    EXPECT_EQ(watched([](at::Tensor& x) { x[3][0] = kNan; }), "0,1,0,y,nan");
    EXPECT_EQ(watched([](at::Tensor& x) { x[0][0] = x[3][0] = kNan; }), "0,0,0,y,nan");
    EXPECT_EQ(watched([&](at::Tensor& x) { x[0][0] = -inf, x[3][0] = inf; }), "0,1,0,y,inf");
    EXPECT_EQ(watched([&](at::Tensor& x) { x[0][0] = -inf; }), "0,0,0,y,-inf");
    EXPECT_EQ(watched([](at::Tensor& x) { x[6][2] = kNan; }, 1), "1,1,0,y,nan");
    body.Weight(1, "shift")[1] = inf;
    EXPECT_EQ(watched([](at::Tensor&) {}), "0,0,1,z,inf");
    EXPECT_EQ(watched([](at::Tensor& x) { x[0][1] = -3e38f; }), "0,0,1,z,nan");  // -inf + inf
  });
}

// Two microbatches are under way when the first one steps: the second one's backward uses the
// weights of its forward.
TEST(TorchStages, KeepTheVersionsThatMicrobatchesUse) {
  OnOneRank([](Transport& transport) {
    Stages stages("versions.pkg");
    stages.job.schedule = "pipedream";
    stages.job.microbatches = stages.data.microbatches = 1;
    stages.Open(transport);
    TorchStages& body = *stages.body;
    EXPECT_EQ(ErrorOf([&] { body.UseVersion(1, 3); }),
              "weight version 3: is not kept: the stage has made 0 steps");
    body.updater().Begin(0, 1);
    body.SetStep(stages.data, 0, 2);
    const at::Tensor scale = at::tensor({1.f, 2.f, 3.f});
    std::vector<at::Tensor> gradients;
    for (int m : {0, 1}) {
      for (int stage : {0, 1}) body.UseVersion(stage, 0);
      stages.Forward(m);
      gradients.push_back((stages.data.Input(0, m, 0) * scale - 1).mul(2. / 6).sum(0));
      EXPECT_NEAR(body.terms()[0][m].loss,
                  (stages.data.Input(0, m, 0) * scale - 1).square().mean().item<double>(), 1e-6);
    }
    const at::Tensor first = -0.25 * gradients[0],
                     second = first - 0.25 * (0.5 * gradients[0] + gradients[1]);
    stages.Backward(0, false);
    body.Step(1);
    EXPECT_TRUE(Close(body.Weight(1, "shift"), first));
    body.UseVersion(1, 0);
    EXPECT_TRUE(at::equal(body.Weight(1, "shift"), at::zeros({3})));
    EXPECT_TRUE(
        Close(stages.Backward(1, false), (stages.data.Input(0, 1, 0) * scale - 1).mul(2. / 6)));
    body.UseVersion(1, 1);
    EXPECT_TRUE(Close(body.Weight(1, "shift"), first));
    body.Step(1);
    EXPECT_TRUE(Close(body.Weight(1, "shift"), second));
    EXPECT_EQ(stages.data.stepped, (std::vector<int64_t>{1, 2}));
    // No microbatch needs the older ones any more.
    EXPECT_EQ(ErrorOf([&] { body.UseVersion(1, 0); }),
              "weight version 0: is not kept: the stage has made 2 steps");
    body.UseVersion(1, 2);
    EXPECT_TRUE(at::equal(body.Weight(0, "scale"), scale));  // this stage has not stepped
  });
}

TEST(TorchStages, RefuseToRecomputeWhatWritesToItsParameter) {
  OnOneRank([](Transport& transport) {
    Stages stages("writes.pkg");
    std::string code = kScaleCode;
    const std::string line = "    scale = self.scale\n";
    code.replace(code.find(line), line.size(),
                 "    scale = torch.clamp_(self.scale.data, 0.0, 2.0)\n");
    WriteFile(stages.options.package + "/modules/module0.py", code);
    stages.run.manifest.modules[0].code_hash = HexHash(code);
    stages.recompute = {false, true};
    stages.Open(transport);
    const std::string error =
        "recompute: module0 writes to its parameter scale in forward, and would write twice\n"
        "  list the other stages or modules: \"recompute\": {\"modules\": [...]}";
    EXPECT_EQ(ErrorOf([&] { stages.body->Recompute({true, false}); }), error);
    stages.body->Recompute({false, false});
    stages.recompute = {true, true};
    EXPECT_EQ(ErrorOf([&] { stages.Open(transport); }), error);
    stages.body->SetTraining(false);  // runs nothing twice
    stages.body->Recompute({true, true});
  });
}

TEST(TorchStages, HaveNothingToLoadIfAllWeightsAreInMemory) {
  OnOneRank([](Transport& transport) {
    Stages stages("memory.pkg");
    stages.Open(transport);
    EXPECT_EQ(ErrorOf([&] { stages.body->Load(0); }),
              "this stage keeps all its weights: nothing to load");
    EXPECT_EQ(ErrorOf([&] { stages.body->Evict(0); }),
              "this stage keeps all its weights: nothing to evict");
    stages.body->MergeBuffers(transport);  // which the job does not ask for
    EXPECT_TRUE(at::equal(stages.body->Weight(0, "scale"), at::tensor({1.f, 2.f, 3.f})));
  });
}

}  // namespace
}  // namespace pipewright
