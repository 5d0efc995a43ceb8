#include "runtime/watch/supervise.h"

#include <fcntl.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <filesystem>

#include "base/error.h"
#include "base/text.h"
#include "formats/conf.h"
#include "formats/manifest.h"
#include "runtime/exec/status.h"

namespace pipewright {

namespace {

struct RunEnd {
  int code = 0;             // as in a shell: 128 + signal
  bool terminated = false;  // by a signal to the supervisor
};

sigset_t Handled() {
  sigset_t set;
  sigemptyset(&set);
  for (int signal : {SIGTERM, SIGINT, SIGUSR1, SIGCHLD}) sigaddset(&set, signal);
  return set;
}

int Start(const std::vector<std::string>& command, bool quiet = false) {
  std::vector<char*> words;
  for (const std::string& word : command) words.push_back(const_cast<char*>(word.c_str()));
  words.push_back(nullptr);
  int pid = fork();
  if (pid < 0) throw Error("fork", strerror(errno));
  if (pid > 0) return pid;
  prctl(PR_SET_PDEATHSIG, SIGTERM);
  sigset_t set = Handled();
  sigprocmask(SIG_UNBLOCK, &set, nullptr);
  if (quiet) {
    int null = open("/dev/null", O_RDWR);
    for (int file : {0, 1, 2}) dup2(null, file);
  }
  execvp(words[0], words.data());
  std::fprintf(stderr, "pipewright-run: %s: %s\n", words[0], strerror(errno));
  _exit(127);
}

// Waits for the process and forwards signals; for at most `limit` seconds if `limit` > 0.
RunEnd WaitFor(int pid, int limit = 0) {
  RunEnd end;
  sigset_t set = Handled();
  for (int waited = 0;;) {
    int status = 0;
    if (waitpid(pid, &status, WNOHANG) == pid) {
      end.code = WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
      return end;
    }
    timespec second{1, 0};
    int signal = sigtimedwait(&set, nullptr, &second);
    if (signal == SIGUSR1) kill(pid, SIGUSR1);
    if (signal == SIGTERM || signal == SIGINT) {
      end.terminated = true;
      kill(pid, SIGTERM);
    }
    if (signal < 0 && errno == EAGAIN && limit > 0 && ++waited >= limit) kill(pid, SIGKILL);
  }
}

std::vector<std::string> MpirunWords(const SuperviseOptions& options) {
  std::vector<std::string> words;
  for (const std::string& word : Split(options.mpirun, ' '))
    if (!word.empty()) words.push_back(word);
  return words;
}

std::string HostName(const std::string& host) { return host.substr(0, host.find(':')); }
int Slots(const std::string& host) {
  size_t colon = host.find(':');
  return colon == std::string::npos ? 1 : std::max(1, std::atoi(host.c_str() + colon + 1));
}

class Supervisor {
 public:
  explicit Supervisor(const SuperviseOptions& options)
      : options_(options), hosts_(options.hosts), ranks_(options.ranks) {
    std::string base = access("/dev/shm", W_OK) == 0
                           ? "/dev/shm"
                           : std::filesystem::temp_directory_path().string();
    folder_ = base + "/pipewright-supervisor-" + std::to_string(getpid());
    std::filesystem::create_directories(folder_);
    setenv("PIPEWRIGHT_STATUS", (folder_ + "/status").c_str(), 1);
    sigset_t set = Handled();
    sigprocmask(SIG_BLOCK, &set, nullptr);
  }
  ~Supervisor() {
    std::error_code ignored;
    std::filesystem::remove_all(folder_, ignored);
  }

  int Run() {
    int64_t reached = -1;  // last step of the previous runs
    for (int restart = 0;; ++restart) {
      std::filesystem::remove_all(folder_ + "/status");
      RunEnd end = WaitFor(Start(Command()));
      EndRemains();
      if (end.code == kSuccess || end.code == kUsage || end.terminated) return end.code;
      std::vector<RankStatus> ranks = ReadStatusFolder(folder_ + "/status");
      int64_t step = -1;  // -1: no rank has started its list
      bool agreed = !ranks.empty();
      for (const RankStatus& rank : ranks) {
        agreed &= rank.state == RankState::kFinished;
        step = std::max(step, rank.step);
      }
      std::string text = "the run ended with code " + std::to_string(end.code) +
                         (step > 0 ? " after step " + std::to_string(step) : "");
      if (agreed || restart == options_.restarts) {
        if (options_.restarts > 0)
          Say(text + (agreed ? ", which another would too" : " and is not started again"));
        return end.code;
      }
      if (options_.elastic) Shrink(step <= reached);
      reached = std::max(reached, step);
      Say(text + "; restart " + std::to_string(restart + 1) + " of " +
          std::to_string(options_.restarts) + " on " + Counted(ranks_, "rank"));
    }
  }

 private:
  std::vector<std::string> Command() const {
    std::vector<std::string> words = MpirunWords(options_);
    if (!hosts_.empty()) words.insert(words.end(), {"--host", Join(hosts_, ",")});
    words.insert(words.end(), {"-n", std::to_string(ranks_)});
    words.insert(words.end(), options_.command.begin(), options_.command.end());
    if (options_.resumes) words.push_back("--resume");
    std::string conf = options_.conf;
    if (ranks_ != options_.ranks) {
      conf = folder_ + "/conf-" + std::to_string(ranks_) + ".json";
      int modules = static_cast<int>(ReadManifest(options_.package).modules.size());
      WriteFile(conf, WriteConf(GroupModules(modules, ranks_)));
    }
    if (!conf.empty()) words.insert(words.end(), {"--conf", conf});
    return words;
  }

  void Shrink(bool stuck) {
    if (!hosts_.empty()) {
      std::erase_if(hosts_, [&](const std::string& host) {
        std::vector<std::string> words = MpirunWords(options_);
        words.insert(words.end(), {"--host", HostName(host), "-n", "1", "true"});
        bool answers = WaitFor(Start(words, /*quiet=*/true), 10).code == 0;
        if (!answers) Say("host " + HostName(host) + " does not answer and is left out");
        return !answers;
      });
      if (hosts_.empty()) throw Error("hosts", "none of them answers");
      int slots = 0;
      for (const std::string& host : hosts_) slots += Slots(host);
      if (slots < ranks_) {
        ranks_ = slots;
        return;
      }
    }
    if (stuck && ranks_ > 1) --ranks_;
  }

  // Ends all processes that the run has left on this host.
  void EndRemains() const {
    char host[64] = {};
    gethostname(host, sizeof(host) - 1);
    auto alive = [&] {
      std::vector<int> pids;
      for (const RankStatus& rank : ReadStatusFolder(folder_ + "/status"))
        if (rank.host == host && rank.pid > 0 && kill(rank.pid, 0) == 0) pids.push_back(rank.pid);
      return pids;
    };
    for (int i = 0; i < 20 && !alive().empty(); ++i) usleep(100000);
    for (int pid : alive()) kill(pid, SIGKILL);
    for (int i = 0; i < 50 && !alive().empty(); ++i) usleep(100000);
  }

  void Say(const std::string& text) const {
    std::fprintf(stderr, "%s: %s\n", options_.program.c_str(), text.c_str());
  }

  const SuperviseOptions& options_;
  std::vector<std::string> hosts_;
  int ranks_;
  std::string folder_;
};

}  // namespace

int Supervise(const SuperviseOptions& options) { return Supervisor(options).Run(); }

}  // namespace pipewright
