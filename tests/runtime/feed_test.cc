#include "runtime/feed.h"

#include <gtest/gtest.h>

#include <cstring>
#include <limits>

#include "runtime/data/signatures.h"
#include "tests/error_text.h"
#include "tests/runtime/small_package.h"

namespace pipewright {
namespace {

// Three modules on three ranks. Rank 0 takes the input, rank 2 makes the output.
RunPlan ThreeRanks() {
  RunPlan run;
  run.manifest.values = {{"x", ValueKind::kTensor, "float32", {"s0", "s1"}, false, -1, {0}, {}},
                         {"a", ValueKind::kTensor, "float32", {"s0", "s1"}, true, 0, {1}, {}},
                         {"b", ValueKind::kTensor, "float32", {"s0", "s1"}, true, 1, {2}, {}},
                         {"z", ValueKind::kTensor, "float32", {"s0", "s1"}, true, 2, {}, {}}};
  run.manifest.inputs = {0};
  run.manifest.outputs = {3};
  run.manifest.modules.resize(3);
  run.conf = {{0, 1, 2}, false, {{0}, {1}, {2}}, {}};
  run.graph.stages = run.graph.ranks = 3;
  return run;
}

// Six samples of up to four numbers, with a class each; one class does not count.
Job SixSamples(const std::string& name, float third = 2) {
  Job job = SmallJob();
  job.losses[0].kind = LossJob::kCrossEntropy;
  job.data.tensors = {TempPath(name)};
  job.data.inputs = {{"x", "x"}};
  job.data.target = "class";
  job.data.length = "length";
  job.data.shuffle = false;
  float x[24];
  for (int i = 0; i < 24; ++i) x[i] = static_cast<float>(i);
  x[8] = third;  // the first number of sample 2
  const int64_t classes[6] = {0, 1, 1, -100, 0, 0}, lengths[6] = {1, 3, 2, 4, 1, 1};
  auto bytes = [](const auto& array) {
    return std::string_view(reinterpret_cast<const char*>(array), sizeof array);
  };
  WriteSafetensors(job.data.tensors[0], {{"x", "F32", {6, 4}, bytes(x)},
                                         {"class", "I64", {6}, bytes(classes)},
                                         {"length", "I64", {6}, bytes(lengths)}});
  return job;
}

TEST(Signatures, RanksThatRead) {
  const RunPlan run = ThreeRanks();
  Job job;
  EXPECT_EQ(ReadingRanks(run, job), (std::vector<bool>{true, false, true}));
  job.losses[0].kind = LossJob::kOutput;  // no targets
  EXPECT_EQ(ReadingRanks(run, job), (std::vector<bool>{true, false, false}));
  RunPlan none = run;
  none.manifest.inputs.clear();
  none.manifest.values[0].consumers.clear();
  EXPECT_EQ(ReadingRanks(none, job), (std::vector<bool>{true, false, false}));
  none.conf.stage_to_ranks = {{1}, {0}, {0, 2}};  // replicas
  job.losses[0].kind = LossJob::kMse;
  EXPECT_EQ(ReadingRanks(none, job), (std::vector<bool>{true, false, true}));
}

TEST(Signatures, DescribeASourceWithoutItsData) {
  struct Source : DataSource {
    std::vector<DataColumn> columns() const override {
      return {{"x", "float32", {2, 3}}, {"\"y\"", "int64", {}}};
    }
    int64_t samples() const override { return int64_t{1} << 40; }
    int64_t tokens_per_sample() const override { return 9; }
    void Read(int, int64_t, char*) const override {}
  };
  const auto copy = DescribedSource(DescribeSource(Source()));
  EXPECT_EQ(copy->samples(), int64_t{1} << 40);
  EXPECT_EQ(copy->tokens_per_sample(), 9);
  ASSERT_EQ(copy->columns().size(), 2u);
  EXPECT_EQ(copy->columns()[0].shape, (std::vector<int64_t>{2, 3}));
  EXPECT_EQ(copy->columns()[1].name, "\"y\"");
  EXPECT_EQ(copy->columns()[1].dtype, "int64");
  EXPECT_THROW(copy->Read(0, 0, nullptr), std::logic_error);
}

TEST(Signatures, LengthsReachTheToldRanksInOrder) {
  RunThreads(3, [](Transport& transport) {
    if (transport.rank() == 2) return;  // is not told
    SharedLengths lengths(transport, 0, {1}, 2, [&](int64_t minibatch) {
      EXPECT_EQ(transport.rank(), 0);
      return std::vector<int64_t>{minibatch, 10 * minibatch};
    });
    for (int64_t minibatch : {0, 1, 2})
      EXPECT_EQ(lengths.Of(minibatch), transport.rank() == 0
                                           ? std::vector<int64_t>{}
                                           : (std::vector<int64_t>{minibatch, 10 * minibatch}));
    lengths.Finish();
  });
}

TEST(Feed, GivesAllRanksTheSameSizesAndCutsSamples) {
  const RunPlan run = ThreeRanks();
  const Job job = SixSamples("six.safetensors");
  RunThreads(3, [&](Transport& transport) {
    Feed feed;
    feed.Open(job, job.data, run, "job.json: data", transport);
    EXPECT_EQ(feed.sampler->per_epoch(), 1);  // 4 of 6 samples
    const std::vector<int64_t> longest = {3, 4};
    for (int m : {0, 1}) {
      EXPECT_EQ(feed.Specs(0, m)[0].sizes, (std::vector<int64_t>{2, longest[m]}));
      EXPECT_EQ(feed.Target(0, 0, m).sizes, std::vector<int64_t>{2});
    }
    const bool reads = transport.rank() != 1;
    EXPECT_EQ(feed.Reads(false).size(), reads ? 1u : 0u);
    if (reads) {
      EXPECT_TRUE(
          at::equal(feed.Input(0, 0, 0), at::tensor({0.f, 1.f, 2.f, 4.f, 5.f, 6.f}).view({2, 3})));
      EXPECT_TRUE(at::equal(feed.Input(-1, 0, 1), at::tensor({1, -100}, at::kLong)));
      // Two targets of the first microbatch count, and one of the second: 2/3 and 1/3 of the loss.
      EXPECT_DOUBLE_EQ(feed.LossWeight(0, 0, 0), 4. / 3);
      EXPECT_DOUBLE_EQ(feed.LossWeight(0, 0, 1), 2. / 3);
      EXPECT_NE(feed.TargetName(0).find("data.target \"class\""), std::string::npos);
    }
    feed.StartAt(1, {0, 2});  // what was sent ahead is of other samples
    EXPECT_EQ(feed.Specs(1, 0)[0].sizes, (std::vector<int64_t>{2, 4}));
    EXPECT_EQ(feed.Specs(1, 1)[0].sizes, (std::vector<int64_t>{2, 1}));
    feed.Finish();
  });
}

TEST(Feed, TellsTheSizesOfSmallerMicrobatches) {
  using Sizes = std::vector<std::vector<int64_t>>;
  const RunPlan run = ThreeRanks();
  Job job = SixSamples("smaller.safetensors");
  auto expect = [&](int64_t minibatches, const Sizes& sizes) {
    RunThreads(3, [&](Transport& transport) {
      Feed feed;
      feed.Open(job, job.data, run, "job.json: data", transport);
      feed.minibatches = minibatches;
      Sizes found;
      for (const std::vector<TensorSpec>& specs : feed.SmallerSpecs())
        found.push_back(specs.at(0).sizes);
      // Rank 1 reads no lengths.
      EXPECT_EQ(found, transport.rank() == 1 && !job.data.length.empty() ? Sizes() : sizes);
      feed.Finish();
    });
  };
  expect(9, {});
  job.partial = true;  // the last two samples, with the length 1
  expect(1, {});
  expect(2, {{1, 1}, {1, 1}});
  job.data.length = "";
  expect(2, {{1, 4}, {1, 4}});
  job.minibatch_size = 3;  // 2 samples and 1
  expect(1, {{1, 4}});
}

TEST(Feed, WeightsAreOneWhereAllMicrobatchesCountTheSame) {
  const RunPlan run = ThreeRanks();
  Job job = SixSamples("same.safetensors");
  job.losses[0].kind = LossJob::kOutput;
  job.data.target = job.data.length = "";
  RunThreads(3, [&](Transport& transport) {
    Feed feed;
    feed.Open(job, job.data, run, "job.json: data", transport);
    EXPECT_EQ(feed.LossWeight(0, 0, 1), 1);
    feed.Finish();
  });
  job.minibatch_size = 3;  // 2 samples and 1
  RunThreads(3, [&](Transport& transport) {
    Feed feed;
    feed.Open(job, job.data, run, "job.json: data", transport);
    EXPECT_DOUBLE_EQ(feed.LossWeight(0, 0, 0), 4. / 3);
    EXPECT_DOUBLE_EQ(feed.LossWeight(0, 1, 1), 2. / 3);
    feed.Finish();
  });
}

TEST(Feed, NamesTheFirstSampleThatIsNotFinite) {
  const RunPlan run = ThreeRanks();
  for (float value :
       {std::numeric_limits<float>::quiet_NaN(), -std::numeric_limits<float>::infinity()}) {
    const Job job = SixSamples("spoiled.safetensors", value);
    RunThreads(3, [&](Transport& transport) {
      Feed feed;
      feed.Open(job, job.data, run, "job.json: data", transport);
      feed.Specs(0, 0);
      EXPECT_EQ(feed.NotFinite(0, 0), "");
      const std::string found = feed.NotFinite(0, 1);
      if (transport.rank() == 1 || value < 0) {  // masks hold -inf
        EXPECT_EQ(found, "");
      } else {
        EXPECT_EQ(found.find("sample 2 of job.json: data.inputs"), 0u) << found;
        EXPECT_NE(found.find(" holds nan"), std::string::npos) << found;
      }
      feed.Finish();
    });
  }
}

TEST(Feed, AnErrorOfOneRankIsThatOfAll) {
  const RunPlan run = ThreeRanks();
  Job job = SixSamples("error.safetensors");
  job.data.target = "clas";
  std::vector<std::string> errors(3);
  RunThreads(3, [&](Transport& transport) {
    Feed feed;
    errors[transport.rank()] =
        ErrorOf([&] { feed.Open(job, job.data, run, "job.json: data", transport); });
  });
  EXPECT_NE(errors[0].find("(did you mean \"class\"?)"), std::string::npos) << errors[0];
  EXPECT_EQ(errors[1], errors[0]);
  EXPECT_EQ(errors[2], errors[0]);
}

}  // namespace
}  // namespace pipewright
