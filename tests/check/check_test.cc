// Checks runs of a small package, and compares what is found and what is left out.
#include "check/check.h"

#include <gtest/gtest.h>
#include <sched.h>

#include <cstdlib>
#include <set>
#include <stdexcept>

#include "check/rules.h"
#include "tests/runtime/small_package.h"

namespace pipewright {
namespace {

using Texts = std::vector<std::string>;

// The rule and text of each finding, except those about the machine.
Texts Found(const CheckResult& result, Severity severity = Severity::kError) {
  Texts found;
  for (const Finding& one : result.findings)
    if (one.severity == severity && one.rule != "machine")
      found.push_back(one.rule + " " + one.text.substr(0, one.text.find('\n')));
  return found;
}

// The rule and reason of each rule that is left out, except for the machine's.
Texts LeftOut(const CheckResult& result) {
  Texts left;
  for (const NotChecked& one : result.not_checked)
    if (one.rule != "machine") left.push_back(one.rule + " " + one.why);
  return left;
}

Texts Because(const std::string& why, const Texts& rules) {
  Texts left;
  for (const std::string& rule : rules) left.push_back(rule + " " + why);
  return left;
}

Texts operator+(Texts a, const Texts& b) {
  a.insert(a.end(), b.begin(), b.end());
  return a;
}

const Texts kOfRun = {"plan", "data", "start", "values", "outputs", "balance", "memory", "time"};
const Texts kOfCosts = {"balance", "memory", "time"};
constexpr char kNoProfile[] = "no profile, so no times: `pipewright profile` measures one";

// Writes eight samples and a job for the small package, with `more` before its end.
std::string WriteJob(const std::string& more = "") {
  const at::Tensor rows = at::ones({8, 3});
  const std::string_view bytes(static_cast<const char*>(rows.data_ptr()), rows.nbytes());
  WriteSafetensors(TempPath("rows.safetensors"),
                   {{"x", "F32", {8, 3}, bytes}, {"t", "F32", {8, 3}, bytes}});
  const std::string job = TempPath("job.json");
  WriteFile(job, R"({"data": {"tensors": "rows.safetensors", "inputs": {"x": "x"}, "target": "t"},
 "loss": "mse", "optimizer": {"type": "sgd", "lr": 0.1},
 "microbatches": 2, "microbatch_size": 2, "save": "trained.safetensors")" +
                     more + "}\n");
  return job;
}

CheckRequest Request(const std::string& package) {
  CheckRequest request;
  request.package = SmallPackage(package);
  request.job = WriteJob();
  return request;
}

TEST(CheckRules, AreDistinctAndDescribed) {
  std::set<std::string> names;
  for (const CheckRule& rule : CheckRules()) {
    EXPECT_TRUE(names.insert(rule.name).second) << rule.name;
    EXPECT_FALSE(rule.description.empty() || rule.description.ends_with(".")) << rule.name;
  }
  EXPECT_EQ(names.size(), 14u);
  for (const std::string& rule : kOfRun) EXPECT_TRUE(names.count(rule)) << rule;
}

TEST(CheckResult, CountsBySeverity) {
  CheckResult result;
  EXPECT_EQ(result.Count(Severity::kError), 0);
  for (Severity severity : {Severity::kError, Severity::kNote, Severity::kError})
    Add(result, severity, "job", "x");
  EXPECT_EQ(result.Count(Severity::kError), 2);
  EXPECT_EQ(result.Count(Severity::kWarning), 0);
  EXPECT_EQ(result.Count(Severity::kNote), 1);
}

TEST(CheckResult, HasTheLineThatATextBeginsWith) {
  using Place = std::pair<int, int>;
  auto place = [](const std::string& text) {
    CheckResult result;
    Add(result, Severity::kError, "job", text);
    EXPECT_EQ(result.findings.at(0).text, text);
    return Place(result.findings[0].line, result.findings[0].column);
  };
  EXPECT_EQ(place("job.json:3:12: not JSON"), Place(3, 12));
  EXPECT_EQ(place("a/m.py:7: is not what it was"), Place(7, 0));
  EXPECT_EQ(place("job.json: loss: is at 3:4"), Place(0, 0));
  EXPECT_EQ(place("job.json:x:3: a"), Place(0, 0));
  EXPECT_EQ(place("job.json:3:x: a"), Place(3, 0));
  EXPECT_EQ(place("job.json:123456789: a"), Place(0, 0));
  EXPECT_EQ(place("job.json::3: a"), Place(0, 0));
  EXPECT_EQ(place("nothing"), Place(0, 0));
  EXPECT_EQ(place(""), Place(0, 0));
}

TEST(CheckResult, TurnsExceptionsIntoErrors) {
  CheckResult result;
  EXPECT_TRUE(Passes(result, "data", [] {}));
  EXPECT_TRUE(result.findings.empty());
  EXPECT_FALSE(Passes(result, "data", [] { throw Error("a.bin", "is empty", "write to it"); }));
  EXPECT_FALSE(Passes(result, "code", [] { throw std::runtime_error("of the library"); }));
  ASSERT_EQ(result.findings.size(), 2u);
  EXPECT_EQ(result.findings[0].text, "a.bin: is empty\n  write to it");
  EXPECT_EQ(Found(result), (Texts{"data a.bin: is empty", "code of the library"}));
}

TEST(Check, ARunWithoutMistakes) {
  CheckRequest request = Request("right.pkg");
  const CheckResult result = Check(request);
  EXPECT_EQ(Found(result), Texts{});
  EXPECT_EQ(Found(result, Severity::kWarning), Texts{});
  EXPECT_EQ(Found(result, Severity::kNote), Texts{});
  EXPECT_EQ(LeftOut(result), Because(kNoProfile, kOfCosts));
  EXPECT_EQ(result.ranks, 2);
  EXPECT_FALSE(std::filesystem::exists(TempPath("trained.safetensors")));
  request.eval = true;
  EXPECT_EQ(LeftOut(Check(request)), Because("this is an evaluation", Texts{"outputs"} + kOfCosts));
  EXPECT_EQ(Found(Check(request)), Texts{});
}

TEST(Check, WithoutAJobOnlyThePackage) {
  CheckRequest request = Request("alone.pkg");
  request.job.clear();
  const CheckResult result = Check(request);
  EXPECT_EQ(Found(result), Texts{});
  EXPECT_EQ(LeftOut(result), Texts{"job none is given: --job FILE"} +
                                 Because("no job is given: --job FILE", kOfRun));
  EXPECT_EQ(result.ranks, 2);
}

TEST(Check, WithoutAPackageOnlyTheJob) {
  CheckRequest request;
  request.package = TempPath("missing.pkg");
  request.job = WriteJob(", \"stepz\": 3");
  CheckResult result = Check(request);
  ASSERT_EQ(Found(result).size(), 2u);
  EXPECT_EQ(Found(result)[0].find("package " + request.package), 0u) << Found(result)[0];
  EXPECT_EQ(Found(result)[1],
            "job " + request.job + ": unknown key \"stepz\" (did you mean \"steps\"?)");
  const Texts none = Because("there is no package", {"weights", "code", "conf"});
  EXPECT_EQ(LeftOut(result), none + Because("the job has mistakes", kOfRun));
  EXPECT_EQ(result.ranks, 0);
  EXPECT_EQ(result.not_checked.back().rule, "machine");
  EXPECT_EQ(result.not_checked.back().why, "the number of ranks is unknown");
  WriteJob();
  result = Check(request);
  EXPECT_EQ(Found(result).size(), 1u);
  EXPECT_EQ(LeftOut(result), none + Because("there is no package", kOfRun));
}

TEST(Check, EveryMistakeOfAJobWithItsLine) {
  CheckRequest request = Request("mistakes.pkg");
  WriteFile(request.job,
            "{\"data\": {\"tensors\": \"rows.safetensors\", \"inputs\": {\"x\": "
            "\"x\"}, \"target\": \"t\"},\n \"loss\": \"mse\", \"optimizer\": "
            "{\"type\": \"sgd\"},\n \"microbatches\": 0,\n  \"microbatch_size\": "
            "\"two\"}\n");
  const CheckResult result = Check(request);
  ASSERT_EQ(result.Count(Severity::kError), 2);
  std::vector<std::tuple<std::string, int, int>> places;
  for (const Finding& one : result.findings)
    if (one.rule == "job")
      places.emplace_back(one.text.substr(0, one.text.find('\n')), one.line, one.column);
  EXPECT_EQ(
      places,
      (std::vector<std::tuple<std::string, int, int>>{
          {request.job + ": microbatches: 0 is out of range: at least 1", 3, 18},
          {request.job + ": microbatch_size: a whole number is expected, not \"two\"", 4, 22}}));
  EXPECT_EQ(LeftOut(result), Because("the job has mistakes", kOfRun));
  request.job = WriteJob();
  request.set = {"optimizer.lr=x"};
  EXPECT_EQ(Check(request).findings.at(0).rule, "job");
}

TEST(Check, AConfThatDoesNotFitLeavesOutThePlan) {
  CheckRequest request = Request("conf.pkg");
  Conf conf;
  conf.module_to_stage = {0};
  conf.stage_to_ranks = {{0}};
  request.conf = TempPath("conf.json");
  WriteFile(request.conf, WriteConf(conf));
  const CheckResult result = Check(request);
  ASSERT_EQ(Found(result).size(), 1u);
  EXPECT_EQ(Found(result)[0].find("conf " + request.conf), 0u) << Found(result)[0];
  EXPECT_EQ(LeftOut(result),
            (Texts{"plan the conf has mistakes", "start code, conf, plan or data have mistakes",
                   "values the run does not start"} +
             Because("there is no plan", kOfCosts)));
  EXPECT_EQ(result.ranks, 0);
  request.conf.clear();
  request.ranks = 3;  // the package's conf names two
  EXPECT_EQ(Found(Check(request)).size(), 1u);
  EXPECT_EQ(Check(request).findings.at(0).rule, "conf");
  EXPECT_EQ(Check(request).ranks, 3);
}

TEST(Check, EveryMistakeOfThePackage) {
  CheckRequest request = Request("package.pkg");
  const std::string weights = request.package + "/weights/module1.safetensors",
                    code = request.package + "/modules/module0.py";
  std::filesystem::remove(weights);
  WriteFile(code,
            std::string(kScaleCode).replace(std::string(kScaleCode).find("x: Tensor"), 1, "u"));
  CheckResult result = Check(request);
  ASSERT_EQ(Found(result).size(), 2u);
  EXPECT_EQ(Found(result)[0].find("weights " + weights), 0u) << Found(result)[0];
  EXPECT_EQ(Found(result)[1].find("code "), 0u) << Found(result)[1];
  EXPECT_EQ(Found(result, Severity::kNote),
            Texts{"code " + code + ": edited since the model was compiled"});
  EXPECT_EQ(LeftOut(result)[0], "start code, conf, plan or data have mistakes");
  SmallPackage("package.pkg");
  WriteFile(code, std::string(kScaleCode) + "\n");
  result = Check(request);
  EXPECT_EQ(Found(result), Texts{});
  EXPECT_EQ(Found(result, Severity::kNote),
            Texts{"code " + code + ": edited since the model was compiled"});
}

TEST(Check, DataAndOutputsOfTheJob) {
  CheckRequest request = Request("data.pkg");
  request.set = {"data.target=u", "save=" + request.package + "/weights/module0.safetensors"};
  const CheckResult result = Check(request);
  ASSERT_EQ(Found(result).size(), 2u);
  EXPECT_EQ(Found(result)[0].find("data " + request.job), 0u) << Found(result)[0];
  EXPECT_EQ(Found(result)[1].find("outputs "), 0u) << Found(result)[1];
  EXPECT_NE(Found(result)[1].find("module0.safetensors"), std::string::npos) << Found(result)[1];
  EXPECT_EQ(LeftOut(result), (Texts{"start code, conf, plan or data have mistakes",
                                    "values the run does not start"} +
                              Because(kNoProfile, kOfCosts)));
  request.set = {"loss=cross_entropy"};
  ASSERT_EQ(Found(Check(request)).size(), 1u);  // without the ranks, which are threads here
  EXPECT_EQ(Found(Check(request))[0],
            "start " + request.job + ": data.target \"t\" (" + TempPath("rows.safetensors") +
                "): cross_entropy needs an int64 target: output float32 [2, 3], target float32 "
                "[2, 3]");
  request.set = {"save=\"\""};
  EXPECT_EQ(Found(Check(request), Severity::kWarning),
            Texts{"outputs " + request.job +
                  " has neither \"save\" nor \"checkpoint\": the trained weights will be lost at "
                  "the end"});
}

TEST(Check, AnInferenceInPlaceOfAJob) {
  CheckRequest request = Request("infer.pkg");
  request.input = TempPath("rows.safetensors");
  request.output = TempPath("out.safetensors");
  const Texts left = Because("this is an inference",
                             {"job", "plan", "data", "outputs", "balance", "memory", "time"});
  CheckResult result = Check(request);
  EXPECT_EQ(Found(result), Texts{});
  EXPECT_EQ(LeftOut(result), left);
  EXPECT_FALSE(std::filesystem::exists(request.output));
  request.outputs = {"nothing"};
  result = Check(request);
  ASSERT_EQ(Found(result).size(), 1u);
  EXPECT_EQ(Found(result)[0].find("start "), 0u) << Found(result)[0];
  EXPECT_EQ(LeftOut(result), left + Texts{"values the run does not start"});
  request.conf = TempPath("no_such_conf.json");
  EXPECT_EQ(LeftOut(Check(request)),
            left + Because("code or conf have mistakes", {"start", "values"}));
}

TEST(Check, MemoryIsComparedWithAProfileOnly) {
  CheckRequest request = Request("memory.pkg");
  request.memory = 1;
  const CheckResult result = Check(request);
  EXPECT_EQ(Found(result, Severity::kWarning),
            Texts{std::string("memory --memory: nothing is compared with it: ") + kNoProfile});
  EXPECT_EQ(Found(result), Texts{});
}

// Rows 0 to 3 of a table, looked up by the model's input.
TEST(Check, ValuesThatAreNotInTheTable) {
  const std::string package = SmallPackage("table.pkg", {0, 0});
  std::string code = kScaleCode;
  code.replace(code.find("torch.mul(x, scale)"), 19, "torch.embedding(scale, x)");
  Manifest manifest = SmallManifest();
  manifest.values[0].dtype = "int64";
  manifest.values[0].shape = {"s0"};
  manifest.modules[0].held[0].shape = {4, 3};
  manifest.modules[0].code_hash = HexHash(code);
  WriteFile(package + "/modules/module0.py", code);
  WriteFile(package + "/manifest.json", WriteManifest(manifest));
  const at::Tensor table = at::ones({4, 3});
  WriteSafetensors(package + "/weights/module0.safetensors",
                   {{"scale", "F32", {4, 3}, {static_cast<const char*>(table.data_ptr()), 48}}});
  CheckRequest request;
  request.package = package;
  request.input = TempPath("indices.safetensors");
  request.output = TempPath("out.safetensors");
  auto values = [&](std::vector<int64_t> rows) {
    WriteSafetensors(request.input,
                     {{"x",
                       "I64",
                       {static_cast<int64_t>(rows.size())},
                       {reinterpret_cast<const char*>(rows.data()), 8 * rows.size()}}});
    return Found(Check(request));
  };
  const std::string of = " is not in the table scale of 4 rows, 0 to 3",
                    at = "values " + request.input + ": \"x\": sample ";
  EXPECT_EQ(values({0, 3, 1}), Texts{});
  EXPECT_EQ(values({0, 1, 4, -1}), Texts{at + "2: 4" + of});
  EXPECT_EQ(values({0, -1}), Texts{at + "1: -1" + of});
}

TEST(Check, TheMachine) {
  auto machine = [](const CheckResult& result) {
    Texts texts;
    for (const Finding& one : result.findings)
      if (one.rule == "machine") texts.push_back(one.text);
    return texts;
  };
  CheckRequest request = Request("machine.pkg");
  request.set = {"threads=1000"};
  cpu_set_t mine;
  ASSERT_EQ(sched_getaffinity(0, sizeof mine, &mine), 0);
  const int cores = CPU_COUNT(&mine);
  ASSERT_LT(cores, 2000);
  const std::string path = std::getenv("PATH"), folder = TempPath("bin");
  std::filesystem::create_directories(folder);
  setenv("PATH", folder.c_str(), 1);
  const Texts without = machine(Check(request));
  WriteFile(folder + "/mpirun", "");
  std::filesystem::permissions(folder + "/mpirun", std::filesystem::perms::owner_all);
  const Texts with = machine(Check(request));
  setenv("PATH", path.c_str(), 1);
  const std::string shared = "this machine: 2000 threads of 2 ranks share " +
                             std::to_string(cores) + (cores == 1 ? " core" : " cores") +
                             ": they take turns if all ranks run here (--hosts names others)";
  EXPECT_EQ(with, Texts{shared});
  EXPECT_EQ(without, (Texts{"mpirun: is not in PATH, and starts the ranks\n  install Open MPI "
                            "(Debian: openmpi-bin), or run ranks as threads: --in-process N",
                            shared}));
}

}  // namespace
}  // namespace pipewright
