#include "formats/job_mistakes.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <fstream>

#include "base/error.h"
#include "formats/job.h"
#include "tests/temp_folder.h"

namespace pipewright {
namespace {

const std::string kData = R"("data": {"tensors": "rows.safetensors", "inputs": {"x": "x"}, "target": "y"})";

class JobMistakesTest : public testing::Test {
 protected:
  std::vector<std::string> Texts(const std::string& job) {
    std::ofstream(path_) << job;
    std::vector<std::string> texts;
    for (const JobMistake& mistake : JobMistakes(path_))
      texts.push_back(std::to_string(mistake.line) + ":" + std::to_string(mistake.column) +
                      mistake.text.substr(path_.size()));
    return texts;
  }
  const std::string path_ = TempPath("job.json");
};

TEST_F(JobMistakesTest, AValidJobHasNone) {
  EXPECT_EQ(Texts("{" + kData + R"(, "loss": "mse", "optimizer": {"type": "sgd", "lr": 0.1},
      "microbatches": 2, "microbatch_size": 3})"),
            std::vector<std::string>());
}

TEST_F(JobMistakesTest, EveryKeyIsNamedWithItsPlace) {
  EXPECT_EQ(Texts("{" + kData + R"(, "loss": "msee", // a comment
  "optimizer": {"type": "sgd", "lr": -1, "momentum": "much"},
  "microbatches": 0, "microbatch_size": 1.5, "stepz": 3})"),
            (std::vector<std::string>{
                "3:55: unknown key \"stepz\" (did you mean \"steps\"?)",
                "1:88: loss: \"msee\" is not known (did you mean \"mse\"?)\n"
                "  known: cross_entropy, nll, mse, l1, smooth_l1, bce_with_logits, kl_div",
                "3:19: microbatches: 0 is out of range: at least 1",
                "3:41: microbatch_size: a whole number is expected, not 1.5",
                "2:54: optimizer.momentum: a number is expected, not \"much\"",
                "2:38: optimizer.lr: -1.0 is out of range: at least 0.0"}));
}

TEST_F(JobMistakesTest, ChangesCountAsTheRunReadsThem) {
  std::ofstream(path_) << "{" + kData + R"(, "loss": "msee",
  "optimizer": {"type": "sgd", "lr": -1}, "microbatches": 2, "microbatch_size": 3})";
  EXPECT_TRUE(JobMistakes(path_, {"loss=mse", "optimizer.lr=0.1"}).empty());
  const std::vector<std::string> changes = {"loss=mse", "schedule=y", "steps=x"};
  const std::string name = path_ + " with --set loss=mse --set schedule=y --set steps=x: ";
  std::vector<std::string> texts;
  for (const JobMistake& mistake : JobMistakes(path_, changes)) {
    EXPECT_EQ(mistake.text.substr(0, name.size()), name);
    const std::string rest = mistake.text.substr(name.size());
    texts.push_back(std::to_string(mistake.line) + " " + rest.substr(0, rest.find(' ')));
  }
  std::sort(texts.begin(), texts.end());
  EXPECT_EQ(texts, (std::vector<std::string>{"0 schedule:", "0 steps:", "2 optimizer.lr:"}));
  // The object is not in the file.
  const std::vector<JobMistake> made =
      JobMistakes(path_, {"loss=mse", "optimizer.lr=0.1", "validation.steps=1"});
  ASSERT_EQ(made.size(), 1u);
  EXPECT_NE(made[0].text.find(": validation: \"data\" and"), std::string::npos) << made[0].text;
  EXPECT_EQ(made[0].line, 0);
  // A change that cannot be made, and a wrong value beside it.
  const std::vector<JobMistake> wrong = JobMistakes(path_, {"loss=mse", "=2"});
  ASSERT_EQ(wrong.size(), 2u);
  EXPECT_EQ(wrong[0].text, "--set =2: KEY=VALUE is expected, such as optimizer.lr=0.1");
  EXPECT_EQ(wrong[1].line, 2);
}

TEST_F(JobMistakesTest, WhatIsMissingAndWhatIsWrongInside) {
  EXPECT_EQ(Texts(R"({"data": {"tokens": "a.bin", "sequence_length": 0, "dtype": "u7"},
  "loss": ["mse", {"type": "nll", "weight": "x"}], "microbatches": 1, "microbatch_size": 1})"),
            (std::vector<std::string>{
                "1:1: the key \"optimizer\" is missing",
                "1:61: data.dtype: \"u7\" is not known (did you mean \"u8\"?)\n  known: u8, u16, u32",
                "1:49: data.sequence_length: 0 is out of range: at least 1",
                "2:45: loss[1].weight: a number is expected, not \"x\""}));
}

// Only the first mistake of a list is reported.
TEST_F(JobMistakesTest, NamesTheFirstOfAList) {
  EXPECT_EQ(Texts("{" + kData + R"(, "loss": ["msee", {"type": "mse", "weight": "x"}],
  "optimizer": {"type": "sgd", "lr": 1}, "microbatches": 1, "microbatch_size": 0})"),
            (std::vector<std::string>{
                "1:89: loss[0]: \"msee\" is not known (did you mean \"mse\"?)\n"
                "  known: cross_entropy, nll, mse, l1, smooth_l1, bce_with_logits, kl_div",
                "2:80: microbatch_size: 0 is out of range: at least 1"}));
}

TEST_F(JobMistakesTest, UnknownKeysAreReportedOnce) {
  for (const char* key : {R"(a\"b)", R"(a\u0000b)", "a.b", "a[0]", ": ", ""})
    EXPECT_EQ(Texts("{\"" + std::string(key) + "\": 1, " + kData + R"(, "loss": "mse",
      "optimizer": {"type": "sgd", "lr": 0.1}, "microbatches": 2, "microbatch_size": 3})").size(), 1u)
        << key;
}

// The first mistake is the one that ReadJob throws.
TEST_F(JobMistakesTest, TheFirstIsTheReaders) {
  for (const char* job : {"{", "[]", "3", "{}", "{\"data\": 3}", "{\"microbatches\": [}"}) {
    std::ofstream(path_) << job;
    std::string thrown;
    try {
      ReadJob(path_);
    } catch (const Error& e) {
      thrown = e.what();
    }
    const std::vector<JobMistake> mistakes = JobMistakes(path_);
    ASSERT_FALSE(mistakes.empty()) << job;
    EXPECT_EQ(mistakes[0].text, thrown) << job;
  }
}

}  // namespace
}  // namespace pipewright
