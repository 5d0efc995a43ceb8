#include "tests/runtime/exec/launch.h"

#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <ctime>
#include <filesystem>
#include <fstream>
#include <sstream>

namespace pipewright {

// By a variable of their environment: guards and ranks leave their process groups.
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

int Ended::Count(const std::string& text) const {
  int count = 0;
  for (size_t at = output.find(text); at != std::string::npos; at = output.find(text, at + 1))
    ++count;
  return count;
}

Ended Launch(int ranks, const std::string& command, const std::string& environment, int limit) {
  static int number = 0;
  std::string mark =
      "PIPEWRIGHT_LAUNCH=" + std::to_string(getpid()) + "." + std::to_string(number++) + ".";
  Ended ended;
  auto start = std::chrono::steady_clock::now();
  std::string line = "env " + mark + " " + environment +
                     " timeout -k 1 " + std::to_string(limit) + " " MPIEXEC
                     " --oversubscribe -n " + std::to_string(ranks) + " " + command + " 2>&1";
  FILE* pipe = popen(line.c_str(), "r");
  char buffer[4096];
  while (size_t bytes = fread(buffer, 1, sizeof(buffer), pipe)) ended.output.append(buffer, bytes);
  int status = pclose(pipe);
  ended.code = WIFEXITED(status) ? WEXITSTATUS(status) : 128;
  ended.seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  ended.left = Marked(mark);
  // A guard may need a moment to see that all the others have gone.
  for (int i = 0; i < 600 && !ended.left.empty(); ++i) {
    usleep(100000);
    ended.left = Marked(mark);
  }
  for (int pid : ended.left) kill(pid, SIGKILL);
  return ended;
}

// How many times longer than alone three processes take now, beside what else runs.
static double Slowness() {
  constexpr double kWork = 0.2;  // seconds of the processor
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
