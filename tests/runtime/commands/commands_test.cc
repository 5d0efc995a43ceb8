// Tests parts of the commands of pipewright-run: bench, --on-request, traces and generation.
#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <iostream>
#include <sstream>

#include "plan/plan_text.h"
#include "runtime/commands/bench_memory.h"
#include "runtime/commands/bench_report.h"
#include "runtime/commands/bench_requests.h"
#include "runtime/commands/generate.h"
#include "runtime/commands/run_trace.h"
#include "runtime/measure/loss_costs.h"
#include "tests/error_text.h"
#include "tests/runtime/small_package.h"

namespace pipewright {
namespace {

// The events of a rank: seconds of start and end, and of these the waited ones.
std::vector<TraceEvent> Events(const Plan& plan, std::vector<std::array<double, 3>> times) {
  std::vector<TraceEvent> events;
  for (size_t i = 0; i < times.size(); ++i) {
    TraceEvent event;
    event.action = plan.ranks[0].at(i);
    event.start = times[i][0], event.end = times[i][1], event.waited = times[i][2];
    event.resident = static_cast<int64_t>(100 * (i + 1));
    events.push_back(event);
  }
  return events;
}

TEST(BenchReport, SendsCountTowardTheActionBeforeThem) {
  const Plan plan =
      ReadPlan("0F0,0SEND_F0,0RECV_B0,0B0,0STEP\n1RECV_F0,1F0,1B0,1SEND_B0,1STEP\n", "plan");
  RankMeasurements measured;
  AddMeasurements(Events(plan, {{0, 2, 0}, {2, 2.5, 0}, {2.5, 3, 0.25}, {3, 7, 1}, {7, 8, 0}}),
                  measured);
  using Key = std::pair<int, ActionKind>;
  EXPECT_EQ(measured.actions.at(Key(0, ActionKind::kForward)), std::vector<double>{2.75});
  EXPECT_EQ(measured.actions.at(Key(0, ActionKind::kBackward)), std::vector<double>{3});
  EXPECT_EQ(measured.actions.at(Key(0, ActionKind::kStep)), std::vector<double>{1});
  EXPECT_EQ(measured.busy, std::vector<double>{6});  // without transfers and waiting
  EXPECT_EQ(measured.step_ends, std::vector<double>{8});
  EXPECT_EQ(measured.inputs_in_time, 1);
  EXPECT_EQ(measured.inputs_late, 1);
  EXPECT_EQ(measured.waited, 1.25);
  EXPECT_EQ(measured.steps(), 1);
  const Json json = WriteMeasurements(measured);
  EXPECT_DOUBLE_EQ(json["actions"]["0F"]["median"].get<double>(), 2.75e6);
  EXPECT_DOUBLE_EQ(json["waited"].get<double>(), 1.25e6);
  EXPECT_FALSE(HasNoise(measured));
  measured.actions[Key(0, ActionKind::kStep)] = {1, 2, 3, 4};  // is no compute action
  EXPECT_FALSE(HasNoise(measured));
  measured.actions[Key(0, ActionKind::kForward)] = {1, 2, 3, 4};
  EXPECT_TRUE(HasNoise(measured));
}

TEST(BenchReport, TheLinkIsTheSameOnAllRanks) {
  std::vector<Json> links(2);
  RunThreads(2, [&](Transport& t) { links[t.rank()] = LinkCostsJson(t, at::kCPU); });
  EXPECT_EQ(links[0], links[1]);
  EXPECT_GT(links[0]["latency"].get<double>(), 0);
  RunThreads(1, [&](Transport& t) {
    EXPECT_EQ(LinkCostsJson(t, at::kCPU), (Json{{"latency", 0}, {"bandwidth", nullptr}}));
  });
}

TEST(RunTrace, OfComputeActionsStartsWhenTheirInputsAreThere) {
  const Plan plan =
      ReadPlan("0F0,0SEND_F0,0RECV_B0,0B0,0STEP\n1RECV_F0,1F0,1B0,1SEND_B0,1STEP\n", "plan");
  std::vector<TimedAction> events;
  AddEvents(Events(plan, {{10, 12, 0}, {12, 12.5, 0.25}, {12.5, 13, 0.25}, {13, 17, 1}}), 4, 9,
            events);
  ASSERT_EQ(events.size(), 4u);
  EXPECT_EQ(std::pair(events[1].start, events[1].end), std::pair(3e6, 3.5e6));
  EXPECT_EQ(std::pair(events[3].start, events[3].end), std::pair(5e6, 8e6));
  const Json mine = Json::parse(WriteEvents(events).dump());
  const ActionTrace trace = ReadEvents({mine, Json::array()});
  ASSERT_EQ(trace.ranks.size(), 2u);
  EXPECT_TRUE(trace.ranks[1].empty());
  ASSERT_EQ(trace.ranks[0].size(), 4u);
  for (int i = 0; i < 4; ++i) {
    const TimedAction& event = trace.ranks[0][i];
    EXPECT_EQ(std::tuple(event.action, event.step, event.start, event.end, event.resident),
              std::tuple(i, 4, events[i].start, events[i].end, 100. * (i + 1)));
  }
}

TEST(BenchMemory, WeightsGradientsAndActivationsOfARank) {
  const std::string package = SmallPackage("memory.pkg", {0, 0});
  SmallData data;
  RunThreads(1, [&](Transport& transport) {
    MemoryMeter meter;
    Session session(transport);
    session.job = SmallJob();
    SessionOptions options;
    options.package = package;
    session.Open(options);
    session.Load({&data});
    session.Start();
    for (int stage : {0, 1}) {
      const WeightBytes bytes = WeightBytesOf(session, stage);
      EXPECT_EQ(std::tuple(bytes.all, bytes.in_memory, bytes.trained), std::tuple(12., 12., 12.));
    }
    int64_t step = 0;
    const RankBytes bytes = MeasureBytes(session, data, step, meter);
    EXPECT_GT(step, 0);
    EXPECT_GE(bytes.held, 2 * (12 + 12));  // weights and momentum
    EXPECT_GE(bytes.peak, bytes.held + 2 * 12);
    EXPECT_GE(bytes.forward_only_peak, bytes.held + 24);  // a value of [2, 3]
    ASSERT_EQ(bytes.stages.size(), 2u);
    for (const auto& [stage, of_stage] : bytes.stages) {
      EXPECT_GE(of_stage.gradients, 12) << stage;
      EXPECT_GE(of_stage.peak.F, of_stage.activation) << stage;
      EXPECT_GE(of_stage.peak.F, 24) << stage;
      EXPECT_GT(of_stage.peak.B, 0) << stage;
    }
    EXPECT_EQ(bytes.again.size(), 2u);
    // The mean of squares keeps its target of [2, 3], and makes a gradient of that size.
    ASSERT_EQ(bytes.losses.size(), 1u);
    const LossCosts& loss = bytes.losses.at(1);
    EXPECT_GE(loss.kept, 24);
    EXPECT_LT(loss.kept, 3 * 24) << "counts the output, too";
    EXPECT_GE(loss.peak, loss.kept + 24);
    EXPECT_GT(loss.forward, 0);
    EXPECT_GT(loss.backward, 0);
  });
}

// Reads the standard input of rank 0 from `text`, and returns what it prints.
std::string Requests(const std::string& text, std::vector<at::Tensor>& weights) {
  SmallData data;
  Job job = SmallJob();
  job.stop_on_nan = false;  // a stage steps at once, also by itself
  std::istringstream in(text);
  std::streambuf* before = std::cin.rdbuf(in.rdbuf());
  testing::internal::CaptureStdout();
  std::string error;
  weights.assign(2, {});
  try {
    WithSession(SmallPackage("requests.pkg"), 2, job, data, [&](Session& session) {
      const int rank = session.transport.rank();
      EXPECT_EQ(AnswerRequests(session, data), 2);
      weights[rank] = session.stages->Weight(rank, rank ? "shift" : "scale").detach().clone();
    });
  } catch (const std::exception& e) {
    error = e.what();
  }
  std::cin.rdbuf(before);
  const std::string printed = testing::internal::GetCapturedStdout();
  return error.empty() ? printed : error;
}

TEST(BenchRequests, StepsTrainAndStagesByThemselvesDoNot) {
  std::vector<at::Tensor> weights;
  std::istringstream answers(Requests("steps 2 each\nhalves 0.001\nstages 0.001\n", weights));
  std::string line;
  ASSERT_TRUE(std::getline(answers, line));
  const Json steps = Json::parse(line);
  ASSERT_EQ(steps["ranks"].size(), 2u);
  EXPECT_EQ(steps["ranks"][0]["ends"].size(), 2u);
  EXPECT_EQ(steps["ranks"][1]["actions"].size(), 2u);
  SmallReference reference;
  const SmallData data;
  reference.Step(data, SmallJob());
  const std::vector<double> losses = reference.Step(data, SmallJob());
  ASSERT_EQ(steps["losses"].size(), 2u);
  for (int m : {0, 1}) EXPECT_NEAR(steps["losses"][m].get<double>(), losses[m], 1e-6);
  ASSERT_TRUE(std::getline(answers, line));
  const Json halves = Json::parse(line);
  for (int stage : {0, 1})
    for (const char* action : {"F", "B", "W"})
      EXPECT_FALSE(halves["stages"][stage][action].empty()) << stage << action;
  EXPECT_TRUE(halves.contains("link"));
  ASSERT_TRUE(std::getline(answers, line));
  EXPECT_EQ(Json::parse(line)["stages"].size(), 2u);
  EXPECT_FALSE(std::getline(answers, line));
  // The changes that the stages made on their own were undone.
  EXPECT_TRUE(Close(weights[0], reference.scale) && Close(weights[1], reference.shift));
  const std::string error = Requests("step 1\n", weights);
  EXPECT_NE(error.find("request: \"step 1\" is not \"steps N [each]\", \"stages SECONDS\" or "
                       "\"halves SECONDS\""),
            std::string::npos)
      << error;
}

// A model whose next token is the previous one plus 1, modulo 5.
std::string Counting() {
  const std::string package = TempPath("counting.pkg");
  for (const char* part : {"modules", "weights", "conf"})
    std::filesystem::create_directories(package + "/" + part);
  const std::string code = R"(class Module0(Module):
  __parameters__ = ["table", ]
  __buffers__ = []
  training : bool
  table : Tensor
  def forward(self: __torch__.Module0,
    tokens: Tensor) -> Tensor:
    table = self.table
    return torch.embedding(table, tokens)
)";
  Manifest m;
  m.source = "counting.pt2";
  m.symbols["s0"] = {1, 64}, m.symbols["s1"] = {1, 4};
  m.values = {{"tokens", ValueKind::kTensor, "int64", {"s0", "s1"}, false, -1, {0}, {}},
              {"logits", ValueKind::kTensor, "float32", {"s0", "s1", "5"}, true, 0, {}, {}}};
  m.inputs = {0};
  m.outputs = {1};
  m.modules = {{"module0",
                "modules/module0.py",
                "weights/module0.safetensors",
                HexHash(code),
                {},
                {0},
                {1},
                {{"table", WeightKind::kParameter, "float32", {5, 5}, true, true, 0}}}};
  const at::Tensor table = at::eye(5).roll(1, 1).contiguous();
  WriteSafetensors(package + "/weights/module0.safetensors",
                   {{"table", "F32", {5, 5}, {static_cast<const char*>(table.data_ptr()), 100}}});
  WriteFile(package + "/modules/module0.py", code);
  WriteFile(package + "/manifest.json", WriteManifest(m));
  WriteFile(package + "/conf/mp_conf.json", WriteConf({{0}, false, {{0}}, {}}));
  return package;
}

TEST(Generate, TheLikeliestTokensOfSeveralTexts) {
  RunOptions run;
  run.package = Counting();
  run.output = TempPath("texts.json");
  run.threads = 1;
  GenerateOptions options;
  options.tokens = {"0,1", "3"};
  options.new_tokens = 6;  // beyond the model's length of 4
  options.json = true;
  RunThreads(1, [&](Transport& transport) { Generate(run, options, transport); });
  const std::string text = ReadFile(run.output);
  EXPECT_NE(text.find("\"new_tokens\": [2, 3, 4, 0, 1, 2]"), std::string::npos) << text;
  EXPECT_NE(text.find("\"new_tokens\": [4, 0, 1, 2, 3, 4]"), std::string::npos) << text;
  options.stop = 0;
  RunThreads(1, [&](Transport& transport) { Generate(run, options, transport); });
  EXPECT_EQ(ReadFile(run.output).find(", 0, 1"), std::string::npos) << ReadFile(run.output);
  options.tokens = {"0,x"};
  EXPECT_EQ(ErrorOf([&] {
              RunThreads(1, [&](Transport& transport) { Generate(run, options, transport); });
            }),
            "--tokens: \"x\" is not a token: give numbers, such as 1,2,3");
}

}  // namespace
}  // namespace pipewright
