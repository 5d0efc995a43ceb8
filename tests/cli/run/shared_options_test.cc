// Parses the options that several commands share, and compares what they set.
#include "cli/run/shared_options.h"

#include <gtest/gtest.h>

#include <CLI/CLI.hpp>
#include <string>
#include <vector>

#include "tests/error_text.h"

namespace pipewright {
namespace {

// Parses the words as a command that has every shared option.
RunOptions Parse(std::vector<std::string> words) {
  CLI::App app;
  RunOptions run;
  AddPackage(app, run);
  AddSet(app, run);
  AddReport(app, run);
  AddThreads(app, run);
  AddOffload(app, run);
  std::reverse(words.begin(), words.end());  // as CLI11 takes a vector
  app.parse(words);
  return run;
}

TEST(SharedOptions, SetTheFieldsOfARun) {
  const RunOptions run =
      Parse({"model.pkg", "--weights", "w.safetensors", "--verify-files", "--set", "a=1", "--set",
             "b.c=[2, 3]", "--report", "page.html", "--threads", "3", "--device-map", "map.json",
             "--offload-report", "offload.json"});
  EXPECT_EQ(run.package, "model.pkg");
  EXPECT_EQ(run.conf, "");
  EXPECT_EQ(run.weights, "w.safetensors");
  EXPECT_TRUE(run.verify_files);
  EXPECT_EQ(run.set, (std::vector<std::string>{"a=1", "b.c=[2, 3]"}));
  EXPECT_EQ(run.report, "page.html");
  EXPECT_EQ(run.threads, 3);
  EXPECT_EQ(run.device_map, "map.json");
  EXPECT_EQ(run.offload_report, "offload.json");
}

TEST(SharedOptions, MatrixProductsAreChosenByName) {
  EXPECT_EQ(Parse({"model.pkg"}).matmul, MatMul::kAuto);
  EXPECT_EQ(Parse({"model.pkg", "--matmul", "auto"}).matmul, MatMul::kAuto);
  EXPECT_EQ(Parse({"model.pkg", "--matmul", "onednn"}).matmul, MatMul::kOneDnn);
  EXPECT_EQ(Parse({"model.pkg", "--matmul", "libtorch"}).matmul, MatMul::kLibTorch);
  EXPECT_THROW(Parse({"model.pkg", "--matmul", "mkl"}), CLI::ValidationError);
}

TEST(SharedOptions, WhatCannotBeIsRefused) {
  EXPECT_THROW(Parse({}), CLI::RequiredError);
  EXPECT_THROW(Parse({"model.pkg", "--threads", "0"}), CLI::ValidationError);
  // A device map is a conf, too.
  EXPECT_THROW(Parse({"model.pkg", "--conf", "c.json", "--device-map", "m.json"}),
               CLI::ExcludesError);
}

}  // namespace
}  // namespace pipewright
