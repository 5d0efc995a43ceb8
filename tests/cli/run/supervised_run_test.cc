// Starts supervised runs with a script in place of mpirun, and compares what it is told to start.
#include "cli/run/supervised_run.h"

#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <csignal>
#include <cstdio>
#include <filesystem>
#include <utility>

#include "base/error.h"
#include "base/files/read_file.h"
#include "base/text.h"
#include "runtime/watch/supervise.h"
#include "tests/runtime/small_package.h"

namespace pipewright {
namespace {

using Words = std::vector<std::string>;
constexpr int kNotSupervised = 97, kThrown = 99;

Words operator+(Words a, const Words& b) {
  a.insert(a.end(), b.begin(), b.end());
  return a;
}

struct Supervised {
  int code = -1;               // of the process
  std::vector<Words> started;  // what mpirun is told, by run
  std::string err;             // what the supervisor says, or its error
};

// Runs the command line in a process of its own, since it sets variables and blocks signals. The
// runs of mpirun end with these codes, one after the other; the second one first does what `second`
// says.
Supervised RunApart(Words words, const RunOptions& run, bool trains = true,
                    const std::vector<int>& codes = {0}, const std::string& second = "") {
  const std::string script = TempPath("mpirun.sh"), log = TempPath("started"),
                    err = TempPath("stderr");
  std::string text = "for word; do printf '%s\\n' \"$word\"; done >> " + log + "\necho >> " + log +
                     "\ncase $(grep -c '^$' " + log + ") in\n";
  for (size_t i = 0; i < codes.size(); ++i)
    text += std::to_string(i + 1) + ") " + (i == 1 && !second.empty() ? second + "; " : "") +
            "exit " + std::to_string(codes[i]) + ";;\n";
  WriteFile(script, text + "esac\nexit 98\n");
  std::filesystem::remove(log);
  words.insert(words.begin(), {"pipewright-run", "--mpirun", "sh " + script});
  const pid_t pid = fork();
  if (pid == 0) {
    int code = kNotSupervised;
    try {
      if (!std::freopen(err.c_str(), "w", stderr)) _exit(98);
      CLI::App app;
      AddSupervisor(app);
      std::string prompt;
      app.add_option("--prompt", prompt);
      app.allow_extras();
      app.parse(Words(words.rbegin(), words.rend() - 1));
      if (IsSupervised()) RunSupervised(words, run, trains);
    } catch (const CLI::RuntimeError& e) {
      code = e.get_exit_code();
    } catch (const std::exception& e) {
      std::fputs(e.what(), stderr);
      code = kThrown;
    }
    std::fflush(stderr);
    _exit(code);
  }
  Supervised result;
  int status = 0;
  waitpid(pid, &status, 0);
  result.code = WIFEXITED(status) ? WEXITSTATUS(status) : 128;
  result.err = ReadFile(err);
  if (!std::filesystem::exists(log)) return result;
  Words started;
  for (const std::string& word : Split(ReadFile(log), '\n'))
    if (!word.empty())
      started.push_back(word);
    else if (!started.empty())
      result.started.push_back(std::exchange(started, {}));
  return result;
}

// The words before those of the command, with this program in place of pipewright-run.
Words Start(Words before, const Words& after) {
  before.push_back(std::filesystem::read_symlink("/proc/self/exe"));
  before.insert(before.end(), after.begin(), after.end());
  return before;
}

// Two ranks, and a job that writes no checkpoints unless `more` says so.
RunOptions Small(const std::string& more = "") {
  RunOptions run;
  run.package = SmallPackage("supervised.pkg");
  run.job = TempPath("supervised.json");
  WriteFile(run.job,
            R"({"data": {"tensors": "rows.safetensors", "inputs": {"x": "x"}, "target": "t"},
 "loss": "mse", "optimizer": {"type": "sgd"}, "microbatches": 2, "microbatch_size": 2)" +
                more + "}");
  return run;
}

const std::string kCheckpoints = R"(, "checkpoint": {"to": "none", "every": 1})";

TEST(IsSupervised, IfRanksAreToBeStarted) {
  const RunOptions run = Small();
  auto supervised = [&](const Words& words) { return RunApart(words, run).code != kNotSupervised; };
  EXPECT_FALSE(supervised({"train", "P", "J"}));
  EXPECT_TRUE(supervised({"train", "P", "J", "-n", "1"}));
  EXPECT_TRUE(supervised({"train", "P", "J", "--restarts", "0"}));
  EXPECT_TRUE(supervised({"train", "P", "J", "--hosts", "a"}));
}

TEST(RunSupervised, RanksGetTheCommandWithoutTheSupervisorsOptions) {
  RunOptions run = Small();
  const Words command = {"train", "P", "J", "--set", "steps=2", "--steps", "5"};
  Supervised done = RunApart(Words{"-n", "3"} + command, run);
  EXPECT_EQ(done.code, 0) << done.err;
  EXPECT_EQ(done.err, "");
  ASSERT_EQ(done.started.size(), 1u);
  EXPECT_EQ(done.started[0], Start({"-n", "3"}, command));
  // The same, in the other forms.
  for (const Words& asked : {Words{"-n3"}, Words{"--restarts=0", "-n", "3"},
                             Words{"--elastic", "-n", "3", "--restarts", "0"}}) {
    done = RunApart(command + asked, run);
    EXPECT_EQ(done.code, 0) << done.err;
    ASSERT_EQ(done.started.size(), 1u) << Join(asked, " ");
    EXPECT_EQ(done.started[0], Start({"-n", "3"}, command)) << Join(asked, " ");
  }
  // A value that only looks like the option.
  const Words generate = {"generate", "P", "--prompt", "-not now", "--seed", "3"};
  done = RunApart(Words{"-n", "2"} + generate, run, false);
  ASSERT_EQ(done.started.size(), 1u) << done.err;
  EXPECT_EQ(done.started[0], Start({"-n", "2"}, generate));
  // As many as in the conf, which is named at the end. Hosts are for mpirun.
  run.conf = run.package + "/conf/mp_conf.json";
  done = RunApart({"train", "P", "--conf", run.conf, "J", "--hosts=a:1,b:1"}, run);
  ASSERT_EQ(done.started.size(), 1u);
  EXPECT_EQ(done.started[0],
            Start({"--host", "a:1,b:1", "-n", "2"}, {"train", "P", "J", "--conf", run.conf}));
}

TEST(RunSupervised, ResumesWhereThatIsAskedFor) {
  auto resumes = [](const Words& words, const RunOptions& run, bool trains = true) {
    const Supervised done = RunApart(words, run, trains);
    EXPECT_EQ(done.code, 0) << done.err;
    if (done.started.size() != 1) return std::string("not started");
    const Words& last = done.started[0];
    EXPECT_EQ(std::count(last.begin(), last.end(), "--resume"), last.back() == "--resume");
    return last.back();
  };
  RunOptions run = Small(kCheckpoints);
  const Words one = {"train", "P", "J", "-n", "2"}, again = one + Words{"--restarts", "1"};
  EXPECT_EQ(resumes(one, run), "J");
  EXPECT_EQ(resumes(again, run), "--resume");
  EXPECT_EQ(resumes(again, run, false), "J");
  run.resume_from = "there";
  EXPECT_EQ(resumes(again, run), "there");
  EXPECT_EQ(resumes(one, run), "there");
  run = Small();  // without checkpoints
  run.resume = true;
  EXPECT_EQ(resumes(one + Words{"--resume"}, run), "--resume");  // the ranks say what is wrong
  run.resume = false;
  run.job = TempPath("missing.json");
  EXPECT_EQ(resumes(again, run), "--resume");  // and here
}

TEST(RunSupervised, StartsFailedRunsAgain) {
  const RunOptions run = Small(kCheckpoints);
  const Words words = {"train", "P", "J", "--restarts", "1"};
  Supervised done = RunApart(words, run, true, {7, 0});
  EXPECT_EQ(done.code, 0);
  EXPECT_EQ(done.started.size(), 2u);
  EXPECT_EQ(done.started,
            std::vector<Words>(2, Start({"-n", "2"}, {"train", "P", "J", "--resume"})));
  const std::string first =
      "pipewright-run: the run ended with code 7; restart 1 of 1 on 2 ranks\n";
  EXPECT_EQ(done.err, first);
  done = RunApart(words, run, true, {7, 5});
  EXPECT_EQ(done.code, 5);
  EXPECT_EQ(done.started.size(), 2u);
  EXPECT_EQ(done.err,
            first + "pipewright-run: the run ended with code 5 and is not started again\n");
  done = RunApart(words, run, true, {2, 0});  // a wrong command line
  EXPECT_EQ(done.code, 2);
  EXPECT_EQ(done.started.size(), 1u);
  EXPECT_EQ(done.err, "");
}

TEST(RunSupervised, RestartsFromItsOwnCheckpointOnceThereIsOne) {
  const std::string folder = TempPath("checkpoints"), newest = folder + "/step-00000004";
  // Both are of an earlier run, and this run replaces the first one.
  for (const char* step : {"/step-00000004", "/step-00000009"}) {
    std::filesystem::create_directories(folder + step);
    WriteFile(folder + step + "/checkpoint.json", "{}");
  }
  WriteFile(folder + "/latest", "step-00000004\n");
  RunOptions run = Small(R"(, "checkpoint": {"to": ")" + folder + R"(", "every": 1})");
  run.resume_from = "there";
  const Words words = {"train", "P", "--resume-from", "there", "J", "--restarts", "2"};
  const Supervised done = RunApart(words, run, true, {7, 7, 0},
                                   "sleep 0.1; echo '{ }' > " + newest + "/checkpoint.json");
  EXPECT_EQ(done.code, 0) << done.err;
  ASSERT_EQ(done.started.size(), 3u) << done.err;
  const Words from_there = Start({"-n", "2"}, {"train", "P", "J", "--resume-from", "there"});
  EXPECT_EQ(done.started[0], from_there);
  EXPECT_EQ(done.started[1], from_there);
  EXPECT_EQ(done.started[2], Start({"-n", "2"}, {"train", "P", "J", "--resume-from", newest}));
  run = Small("");  // without checkpoints, each run goes back there
  run.resume_from = "there";
  const Supervised again = RunApart(words, run, true, {7, 7, 0});
  EXPECT_EQ(again.code, 0) << again.err;
  EXPECT_EQ(again.started, std::vector<Words>(3, from_there));
}

// The second run of mpirun asks whether a host answers.
TEST(RunSupervised, SignalsDuringTheProbeOfHostsCount) {
  const RunOptions run = Small(kCheckpoints);
  const Words words = {"train", "P", "J", "--restarts", "1", "--elastic", "--hosts", "a:1,b:1"};
  const Words probe = {"--host", "a", "-n", "1", "true"};
  Supervised done = RunApart(words, run, true, {7, 0}, "kill -TERM $PPID; exec sleep 100");
  EXPECT_EQ(done.code, 128 + SIGTERM) << done.err;
  ASSERT_EQ(done.started.size(), 2u) << done.err;
  EXPECT_EQ(done.started[1], probe);
  EXPECT_EQ(done.err, "");
  done = RunApart(words, run, true, {7, 0}, "kill -USR1 $PPID; sleep 1");
  EXPECT_EQ(done.code, 7) << done.err;
  EXPECT_EQ(done.started.size(), 2u) << done.err;
  EXPECT_EQ(done.err,
            "pipewright-run: the run ended with code 7 and is not started again, as asked\n");
}

TEST(Supervise, GoesOnIfNobodyReadsWhatItSays) {
  const std::string script = TempPath("mpirun.sh");
  // What it starts can still be ended by SIGPIPE.
  WriteFile(script, "echo lost >&2\nsleep 0.5\nkill -PIPE $$\nexit 5\n");
  const pid_t pid = fork();
  if (pid == 0) {
    int ends[2];
    if (pipe(ends) != 0) _exit(98);
    dup2(ends[1], STDERR_FILENO);
    close(ends[0]);
    close(ends[1]);
    std::signal(SIGPIPE, SIG_DFL);
    SuperviseOptions options;
    options.program = "pipewright-run";
    options.mpirun = "sh " + script;
    options.ranks = 1;
    _exit(Supervise(options));
  }
  int status = 0;
  waitpid(pid, &status, 0);
  ASSERT_TRUE(WIFEXITED(status)) << "died of signal " << WTERMSIG(status);
  EXPECT_EQ(WEXITSTATUS(status), 128 + SIGPIPE);
}

TEST(RunSupervised, RefusesBeforeAnythingStarts) {
  auto error = [](const Words& words, const RunOptions& run) {
    const Supervised done = RunApart(words, run);
    EXPECT_EQ(done.code, kThrown);
    EXPECT_TRUE(done.started.empty());
    return done.err;
  };
  RunOptions run = Small();
  EXPECT_EQ(error({"train", "P", "J", "--elastic"}, run), "--elastic requires --restarts");
  EXPECT_EQ(error({"train", "P", "J", "--restarts", "2"}, run),
            run.job +
                ": --restarts: the job writes no checkpoints to restart from\n"
                "  add \"checkpoint\": {\"to\": \"FOLDER\", \"every\": STEPS}");
  run.conf = TempPath("none.json");
  const std::string conf = error({"train", "P", "J", "--restarts", "0"}, run);
  EXPECT_EQ(conf.find(run.conf + ": "), 0u) << conf;
  run = Small(kCheckpoints);
  run.device_map = TempPath("map.json");
  EXPECT_EQ(error({"train", "P", "J", "--restarts", "2", "--elastic"}, run),
            "--elastic: a device map fixes the number of ranks: leave out one of the two");
}

TEST(RunSupervised, StartsTheRanksOfADeviceMap) {
  RunOptions run = Small();
  run.device_map = TempPath("devices.json");
  WriteFile(run.device_map, R"({"scale": 0, "shift": 1})");
  const Words command = {"eval", "P", "J", "--device-map", run.device_map};
  Supervised done = RunApart(command + Words{"--restarts", "0"}, run, false);
  ASSERT_EQ(done.started.size(), 1u) << done.err;
  EXPECT_EQ(done.started[0], Start({"-n", "2"}, command));
  WriteFile(run.device_map, R"({"": 0})");
  done = RunApart(command + Words{"--restarts", "0"}, run, false);
  ASSERT_EQ(done.started.size(), 1u) << done.err;
  EXPECT_EQ(done.started[0], Start({"-n", "1"}, command));
}

}  // namespace
}  // namespace pipewright
