#include "runtime/watch/watchdog.h"

#include <dirent.h>
#include <fcntl.h>
#include <poll.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cmath>
#include <csignal>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <sstream>
#include <vector>

#include "base/error.h"
#include "base/files/owner_lock.h"
#include "base/text.h"
#include "runtime/watch/status_folder.h"

namespace pipewright {

namespace {

constexpr int kTick = 250;  // milliseconds

std::string EndedPath(const std::string& folder, const std::string& token) {
  return folder + "/ended-" + token;
}

std::string ReadProc(int pid, const char* file) {
  std::ifstream in("/proc/" + std::to_string(pid) + "/" + file);
  std::stringstream text;
  text << in.rdbuf();
  return text.str();
}

// Returns the fields of /proc/PID/stat from the third on; the second, a name, may contain anything.
std::vector<std::string> ProcStat(int pid) {
  std::string text = ReadProc(pid, "stat");
  size_t end = text.rfind(')');
  if (end == std::string::npos) return {};
  std::istringstream in(text.substr(end + 1));
  std::vector<std::string> fields;
  for (std::string field; in >> field;) fields.push_back(field);
  return fields;
}

bool Stopped(int pid) {
  std::vector<std::string> stat = ProcStat(pid);
  return !stat.empty() && stat[0] == "T";
}

// Returns true if `pid` has started this rank for MPI: a shell may end before its run does.
bool IsLauncher(int pid) {
  static const std::vector<std::string> launchers = {"mpirun", "mpiexec", "orterun",
                                                     "orted",  "prterun", "prted"};
  std::string name = ReadProc(pid, "comm");
  name.resize(std::min(name.size(), name.find('\n')));
  return std::find(launchers.begin(), launchers.end(), name) != launchers.end();
}

bool Traced(int pid) {
  std::string text = ReadProc(pid, "status");
  size_t at = text.find("TracerPid:");
  return at != std::string::npos && std::atoi(text.c_str() + at + 10) != 0;
}

std::string SignalText(int signal) {
  return std::to_string(signal) + " (" + strsignal(signal) + ")";
}

class Watcher {
 public:
  Watcher(const GuardSettings& settings, const StatusFile& status, const std::string& path,
          int pipe, int rank_pid, int launcher)
      : settings_(settings),
        status_(status),
        path_(path),
        pipe_(pipe),
        rank_pid_(rank_pid),
        launcher_(IsLauncher(launcher) ? launcher : -1) {
    // Refers to the launcher's stderr without opening it, because the reader of a pipe waits until
    // nobody has it open. This process's own stderr is gone once the launcher is.
    if (launcher_ > 0)
      terminal_ = open(("/proc/" + std::to_string(launcher_) + "/fd/2").c_str(), O_PATH | O_CLOEXEC);
  }

  void Run() {
    bool stopped = WaitForTheEnd();
    RankStatus status = status_.Read();
    if (status.state == RankState::kFinished) return Clean();
    if (status.state == RankState::kTerminated) return Clean();  // has reported its end itself
    if (!stopped && Orphaned()) return EndOrphan(status);
    const bool first = First();
    if (first && status.state != RankState::kFailed) Say(status, How(status, stopped));
    if (stopped) kill(rank_pid_, SIGKILL);
    // Lets readers of stderr stop waiting for this process.
    int null = open("/dev/null", O_RDWR);
    dup2(null, STDERR_FILENO);
    if (first) EndTheOthers();
    Clean();
  }

 private:
  // Returns true if the rank was stopped for too long, false if it has died or its launcher has.
  bool WaitForTheEnd() {
    uint32_t beats = 0;
    int still = 0;
    std::string line;
    while (true) {
      pollfd poll_pipe{pipe_, POLLIN, 0};
      int ready = poll(&poll_pipe, 1, kTick);
      if (ready > 0) {
        char bytes[4096];
        ssize_t count = read(pipe_, bytes, sizeof(bytes));
        if (count <= 0) return false;
        line.append(bytes, count);
        if (line.back() == '\n') Joined(line);
        continue;
      }
      if (Orphaned()) return false;
      uint32_t now = status_.Read().beats;
      still = now != beats || Traced(rank_pid_) || Paused() ? 0 : still + 1;
      beats = now;
      double limit = settings_.stall_limit;
      if (limit > 0 && still * kTick >= limit * 1000) return true;
    }
  }

  bool Orphaned() const { return launcher_ > 0 && HasEnded(launcher_); }

  // Returns true if all ranks of this host are stopped, as by Ctrl-Z. Returns false if this is the
  // only rank here but not the whole run, because it may be frozen.
  bool Paused() const {
    if (!Stopped(rank_pid_)) return false;
    const std::vector<int> others = Others();
    return (!others.empty() || ranks_ == 1) && std::all_of(others.begin(), others.end(), Stopped);
  }

  // Returns the process ids of the other ranks of this host that have not ended.
  std::vector<int> Others() const {
    std::vector<int> pids;
    const std::string host = ThisHost();
    if (!folder_.empty())
      for (const RankStatus& other : ReadStatusFolder(folder_))
        if (other.pid != rank_pid_ && other.host == host && !HasEnded(other.pid))
          pids.push_back(other.pid);
    return pids;
  }

  void Joined(const std::string& line) {
    std::vector<std::string> parts = Split(line.substr(0, line.size() - 1), '\t');
    folder_ = parts.at(0), path_ = parts.at(1), token_ = parts.at(2);
    ranks_ = std::stoi(parts.at(3));
    use_ = StatusFolderUse(folder_);
  }

  // Returns what is known about the rank's end. Its parent mpirun may have reaped it already.
  std::string How(const RankStatus& status, bool stopped) const {
    if (stopped)
      return "has been stopped for " + std::to_string(std::lround(settings_.stall_limit)) +
             " s, and is ended";
    if (status.signal) return "died of signal " + SignalText(status.signal);
    if (status.state == RankState::kExited) return "called exit() in the middle of the run";
    std::vector<std::string> stat = ProcStat(rank_pid_);
    int code = stat.size() >= 50 ? std::atoi(stat[49].c_str()) : 0;
    if (code & 0x7f) return "died of signal " + SignalText(code & 0x7f);
    if (code) return "ended with exit code " + std::to_string(code >> 8);
    // The parent has already reaped it, and signals that can be caught have been recorded.
    return "died of signal " + SignalText(SIGKILL) + ", or called _exit()";
  }

  void Say(const RankStatus& status, const std::string& how) const {
    std::string text = settings_.program + ": " + DescribeRank(status) + " " + how + ": " +
                       DescribePlace(status) + "\n";
    for (size_t at = 0; at < text.size();) {
      ssize_t written = write(STDERR_FILENO, text.data() + at, text.size() - at);
      if (written <= 0) break;
      at += written;
    }
  }

  // Returns true for the first guard of this host that reports the end.
  bool First() const { return folder_.empty() || ExplainEnd(folder_, token_); }

  // Without a launcher, nothing ends the other ranks if one dies, or shows what they print.
  void EndOrphan(const RankStatus& status) {
    if (status.state != RankState::kFailed && First()) {
      const std::string link = "/proc/self/fd/" + std::to_string(terminal_);
      const int terminal = open(link.c_str(), O_WRONLY | O_APPEND | O_NONBLOCK | O_CLOEXEC);
      if (terminal >= 0) dup2(terminal, STDERR_FILENO);
      Say(status, "is ended, since its launcher (pid " + std::to_string(launcher_) + ") has died");
    }
    // It may be about to end by itself, since MPI notices too.
    for (int i = 0; i < 10 && !HasEnded(rank_pid_); ++i) usleep(100000);
    if (!HasEnded(rank_pid_)) kill(rank_pid_, SIGKILL);
    Clean();
  }

  // mpirun does so too, but not after every kind of death; other launchers do less.
  void EndTheOthers() const {
    for (int i = 0; i < 30 && !Others().empty(); ++i) usleep(100000);
    for (int pid : Others()) kill(pid, SIGKILL);
    if (launcher_ < 0) return;
    for (int i = 0; i < 30 && !HasEnded(launcher_); ++i) usleep(100000);
    if (!HasEnded(launcher_)) kill(launcher_, SIGTERM);
    for (int i = 0; i < 10 && !HasEnded(launcher_); ++i) usleep(100000);
    if (!HasEnded(launcher_)) kill(launcher_, SIGKILL);
  }

  void Clean() const {
    if (settings_.keep_files) return;
    std::error_code ignored;
    std::filesystem::remove(path_, ignored);
    if (folder_.empty()) return;
    // The last guard to leave removes the folder.
    if (ReadStatusFolder(folder_).empty()) std::filesystem::remove_all(folder_, ignored);
  }

  const GuardSettings& settings_;
  const StatusFile& status_;
  std::string path_, folder_, token_;
  StatusFolderUse use_;
  const int pipe_, rank_pid_, launcher_;  // launcher: -1 if there is none
  int terminal_ = -1;
  int ranks_ = 0;  // in the run, once it has joined
};

// Closes all inherited files except stderr and the pipe.
void LeaveTheRank(int pipe, int status) {
  setsid();  // mpirun signals the rank's process group
  for (int signal : {SIGTERM, SIGINT, SIGHUP, SIGUSR1, SIGUSR2, SIGPIPE})
    std::signal(signal, SIG_IGN);
  prctl(PR_SET_NAME, "pipewright-grd");
  std::vector<int> files;
  for (const auto& entry : std::filesystem::directory_iterator("/proc/self/fd"))
    files.push_back(std::atoi(entry.path().filename().c_str()));
  for (int file : files)
    if (file != STDERR_FILENO && file != pipe && file != status) close(file);
  int null = open("/dev/null", O_RDWR);
  if (null != STDIN_FILENO) dup2(null, STDIN_FILENO);
  dup2(null, STDOUT_FILENO);
}

}  // namespace

Guard::Guard(const GuardSettings& settings, const StatusFile& status, const std::string& path) {
  int ends[2];
  if (pipe2(ends, O_CLOEXEC) != 0) throw Error("pipe", strerror(errno));
  int rank_pid = getpid(), launcher = getppid();
  pid_ = fork();
  if (pid_ < 0) throw Error("fork", strerror(errno));
  if (pid_ > 0) {
    close(ends[0]);
    pipe_ = ends[1];
    return;
  }
  try {
    close(ends[1]);
    LeaveTheRank(ends[0], status.file());
    Watcher(settings, status, path, ends[0], rank_pid, launcher).Run();
  } catch (...) {
  }
  _exit(0);
}

Guard::~Guard() {
  if (pid_ < 0) return;
  close(pipe_);
  while (waitpid(pid_, nullptr, 0) < 0 && errno == EINTR) {
  }
}

void Guard::Join(const std::string& folder, const std::string& path, const std::string& token,
                 int ranks) {
  std::string line = folder + "\t" + path + "\t" + token + "\t" + std::to_string(ranks) + "\n";
  if (write(pipe_, line.data(), line.size()) < 0) throw Error("guard", strerror(errno));
}

bool HasEnded(int pid) {
  if (kill(pid, 0) != 0) return errno == ESRCH;
  std::vector<std::string> stat = ProcStat(pid);
  return !stat.empty() && (stat[0] == "Z" || stat[0] == "X");
}

bool ExplainEnd(const std::string& folder, const std::string& token) {
  const int file = open(EndedPath(folder, token).c_str(), O_CREAT | O_EXCL | O_CLOEXEC, 0644);
  if (file >= 0) close(file);
  return file >= 0;
}

bool EndIsExplained(const std::string& folder, const std::string& token) {
  if (folder.empty()) return false;
  if (access(EndedPath(folder, token).c_str(), F_OK) == 0) return true;
  for (const RankStatus& status : ReadStatusFolder(folder))
    if (status.state == RankState::kFailed) return true;
  return false;
}

}  // namespace pipewright
