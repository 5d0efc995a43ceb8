#include "base/process/child.h"

#include <fcntl.h>
#include <poll.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <chrono>
#include <csignal>
#include <cstdio>
#include <cstring>

#include "base/error.h"

namespace pipewright {

namespace {

[[noreturn]] void Exec(const std::vector<std::string>& command, const std::string& input, int out,
                       int err) {
  prctl(PR_SET_PDEATHSIG, SIGTERM);
  dup2(open(input.c_str(), O_RDONLY), STDIN_FILENO);
  dup2(out, STDOUT_FILENO);
  dup2(err, STDERR_FILENO);
  std::vector<char*> words;
  for (const std::string& word : command) words.push_back(const_cast<char*>(word.c_str()));
  words.push_back(nullptr);
  execvp(words[0], words.data());
  std::fprintf(stderr, "%s: %s\n", words[0], strerror(errno));
  _exit(127);
}

// Ends the program if it has reached a limit. Called several times a second.
void ApplyLimits(int pid, const ChildLimits& limits, double seconds, double& ended_at,
                 ChildResult& result) {
  constexpr double kGrace = 5;  // seconds
  if (!result.ended && (seconds >= limits.seconds || (limits.stop && *limits.stop))) {
    result.ended = true;
    ended_at = seconds;
    kill(pid, SIGTERM);
  }
  if (result.ended && seconds > ended_at + kGrace) kill(pid, SIGKILL);
}

// Reads both pipes until the last writer has closed them.
void ReadBoth(int out, int err, int pid, const ChildLimits& limits, ChildResult& result) {
  const auto start = std::chrono::steady_clock::now();
  double ended_at = 0;
  pollfd files[] = {{out, POLLIN, 0}, {err, POLLIN, 0}};
  std::string* texts[] = {&result.out, &result.err};
  for (int open_files = 2; open_files > 0;) {
    constexpr int kPause = 100;  // milliseconds
    if (poll(files, 2, kPause) < 0 && errno != EINTR) break;
    const std::chrono::duration<double> passed = std::chrono::steady_clock::now() - start;
    ApplyLimits(pid, limits, passed.count(), ended_at, result);
    for (int i : {0, 1}) {
      if (files[i].fd < 0 || files[i].revents == 0) continue;
      char bytes[4096];
      const ssize_t count = read(files[i].fd, bytes, sizeof bytes);
      if (count > 0) texts[i]->append(bytes, static_cast<size_t>(count));
      if (count > 0 || (count < 0 && errno == EINTR)) continue;
      files[i].fd = -1;
      --open_files;
    }
  }
}

}  // namespace

ChildResult RunChild(const std::vector<std::string>& command, const ChildLimits& limits,
                     const std::string& input) {
  int out[2], err[2];
  if (pipe2(out, O_CLOEXEC) != 0) throw Error(command[0], strerror(errno));
  if (pipe2(err, O_CLOEXEC) != 0) throw Error(command[0], strerror(errno));
  const int pid = fork();
  if (pid < 0) throw Error(command[0], strerror(errno));
  if (pid == 0) Exec(command, input, out[1], err[1]);
  close(out[1]);
  close(err[1]);
  ChildResult result;
  ReadBoth(out[0], err[0], pid, limits, result);
  close(out[0]);
  close(err[0]);
  int status = 0;
  rusage used{};
  int waited = 0;
  while ((waited = wait4(pid, &status, 0, &used)) < 0 && errno == EINTR) {
  }
  for (const timeval& time : {used.ru_utime, used.ru_stime})
    result.cpu_seconds +=
        static_cast<double>(time.tv_sec) + 1e-6 * static_cast<double>(time.tv_usec);
  result.code = WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
  if (waited < 0) result.code = kFailure;  // where SIGCHLD is ignored, how it ended is lost
  return result;
}

}  // namespace pipewright
