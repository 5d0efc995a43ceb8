#include "tests/runtime/exec/launch.h"

#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <ctime>
#include <filesystem>
#include <fstream>
#include <map>
#include <set>
#include <sstream>
#include <thread>

namespace pipewright {

// Finds processes by a variable of their environment: guards and ranks leave their process groups.
static std::vector<int> Marked(const std::string& mark) {
  std::vector<int> found;
  for (const auto& entry : std::filesystem::directory_iterator("/proc")) {
    int pid = std::atoi(entry.path().filename().c_str());
    if (pid <= 0) continue;
    std::ifstream in(entry.path() / "environ", std::ios::binary);
    std::stringstream text;
    text << in.rdbuf();
    if (text.str().find(mark) != std::string::npos) found.push_back(pid);
  }
  return found;
}

// Returns the parent of a process, 0 if it has ended, and its name.
static int Parent(int pid, std::string& name) {
  std::ifstream in("/proc/" + std::to_string(pid) + "/stat");
  std::string text, state;
  std::getline(in, text, '\0');
  const size_t begin = text.find('('), end = text.rfind(')');
  if (end == std::string::npos) return 0;
  name = text.substr(begin + 1, end - begin - 1);
  int parent = 0;
  std::istringstream(text.substr(end + 1)) >> state >> parent;
  return state == "Z" ? 0 : parent;
}

// Returns true if only mpirun and its parents are left of the marked processes.
static bool MpirunIsAlone(const std::string& mark) {
  std::map<int, std::string> names;
  std::set<int> parents;
  for (int pid : Marked(mark))
    if (const int parent = Parent(pid, names[pid])) parents.insert(parent);
  int last = 0;
  for (const auto& [pid, name] : names) {
    if (parents.count(pid)) continue;
    if (name != "mpirun" && name != "mpiexec" && name != "orterun") return false;
    ++last;
  }
  return last > 0;
}

// Ends a run if its mpirun has been alone for so long that it hangs, as some do after their ranks.
class AloneWatch {
 public:
  explicit AloneWatch(const std::string& mark) : thread_([this, mark] { Run(mark); }) {}
  bool End() {
    if (thread_.joinable()) {
      over_ = true;
      thread_.join();
    }
    return hung_;
  }
  ~AloneWatch() { End(); }

 private:
  void Run(const std::string& mark) {
    constexpr int kTicks = 300;  // ticks of 0.1 s
    for (int alone = 0, tick = 0; !over_ && !hung_; ++tick) {
      usleep(100000);
      if (tick % 10 == 0) alone = MpirunIsAlone(mark) ? alone + 10 : 0;
      hung_ = alone >= kTicks;
    }
    if (hung_)
      for (int pid : Marked(mark)) kill(pid, SIGKILL);
  }
  std::atomic<bool> over_{false}, hung_{false};
  std::thread thread_;
};

int Ended::Count(const std::string& text) const {
  int count = 0;
  for (size_t at = output.find(text); at != std::string::npos; at = output.find(text, at + 1))
    ++count;
  return count;
}

static Ended LaunchOnce(int ranks, const std::string& command, const std::string& environment,
                        int limit, bool& hung) {
  static int number = 0;
  std::string mark =
      "PIPEWRIGHT_LAUNCH=" + std::to_string(getpid()) + "." + std::to_string(number++) + ".";
  Ended ended;
  auto start = std::chrono::steady_clock::now();
  std::string line = "env " + mark + " " + environment +
                     " timeout -k 1 " + std::to_string(limit) + " " MPIEXEC
                     " --oversubscribe -n " + std::to_string(ranks) + " " + command + " 2>&1";
  FILE* pipe = popen(line.c_str(), "r");
  AloneWatch watch(mark);
  char buffer[4096];
  while (size_t bytes = fread(buffer, 1, sizeof(buffer), pipe)) ended.output.append(buffer, bytes);
  int status = pclose(pipe);
  hung = watch.End();
  ended.code = WIFEXITED(status) ? WEXITSTATUS(status) : 128;
  ended.seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  ended.left = Marked(mark);
  // A guard may need a moment to notice that all the others are gone.
  for (int i = 0; i < 600 && !ended.left.empty(); ++i) {
    usleep(100000);
    ended.left = Marked(mark);
  }
  for (int pid : ended.left) kill(pid, SIGKILL);
  return ended;
}

Ended Launch(int ranks, const std::string& command, const std::string& environment, int limit) {
  bool hung = false;
  Ended ended = LaunchOnce(ranks, command, environment, limit, hung);
  if (!hung) return ended;
  std::fprintf(stderr, "mpirun hung after its ranks had ended, and the command runs once more: %s\n%s",
               command.c_str(), ended.output.c_str());
  return LaunchOnce(ranks, command, environment, limit, hung);
}

// Returns how many times longer three processes take now than on an idle machine.
static double Slowness() {
  constexpr double kWork = 0.2;  // seconds of processor time
  const auto start = std::chrono::steady_clock::now();
  std::vector<pid_t> workers;
  for (int i = 0; i < 3; ++i) {
    const pid_t pid = fork();
    if (pid == 0) {
      while (std::clock() < static_cast<std::clock_t>(kWork * CLOCKS_PER_SEC)) {
      }
      _exit(0);
    }
    workers.push_back(pid);
  }
  for (pid_t pid : workers) waitpid(pid, nullptr, 0);
  const std::chrono::duration<double> took = std::chrono::steady_clock::now() - start;
  return std::max(1.0, took.count() / kWork);
}

bool Soon(double seconds, double limit) {
  return seconds < limit || seconds < 2 * limit * Slowness();
}

}  // namespace pipewright
