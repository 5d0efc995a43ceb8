#include "base/process/child.h"

#include <fcntl.h>
#include <poll.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <csignal>
#include <cstdio>
#include <cstring>

#include "base/error.h"

namespace pipewright {

namespace {

[[noreturn]] void Exec(const std::vector<std::string>& command, int out, int err) {
  prctl(PR_SET_PDEATHSIG, SIGTERM);
  dup2(open("/dev/null", O_RDONLY), STDIN_FILENO);
  dup2(out, STDOUT_FILENO);
  dup2(err, STDERR_FILENO);
  std::vector<char*> words;
  for (const std::string& word : command) words.push_back(const_cast<char*>(word.c_str()));
  words.push_back(nullptr);
  execvp(words[0], words.data());
  std::fprintf(stderr, "%s: %s\n", words[0], strerror(errno));
  _exit(127);
}

// Reads both pipes until the last writer has closed them.
void ReadBoth(int out, int err, ChildResult& result) {
  pollfd files[] = {{out, POLLIN, 0}, {err, POLLIN, 0}};
  std::string* texts[] = {&result.out, &result.err};
  for (int open_files = 2; open_files > 0;) {
    if (poll(files, 2, -1) < 0 && errno != EINTR) break;
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

ChildResult RunChild(const std::vector<std::string>& command) {
  int out[2], err[2];
  if (pipe2(out, O_CLOEXEC) != 0) throw Error(command[0], strerror(errno));
  if (pipe2(err, O_CLOEXEC) != 0) throw Error(command[0], strerror(errno));
  const int pid = fork();
  if (pid < 0) throw Error(command[0], strerror(errno));
  if (pid == 0) Exec(command, out[1], err[1]);
  close(out[1]);
  close(err[1]);
  ChildResult result;
  ReadBoth(out[0], err[0], result);
  close(out[0]);
  close(err[0]);
  int status = 0;
  while (waitpid(pid, &status, 0) < 0 && errno == EINTR) {
  }
  result.code = WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
  return result;
}

}  // namespace pipewright
