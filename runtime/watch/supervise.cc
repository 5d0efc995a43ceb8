#include "runtime/watch/supervise.h"

#include <fcntl.h>
#include <poll.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <map>
#include <set>

#include "base/error.h"
#include "base/files/owner_lock.h"
#include "base/files/read_file.h"
#include "base/process/messages.h"
#include "base/process/terminal.h"
#include "base/text.h"
#include "formats/conf.h"
#include "formats/manifest.h"
#include "formats/weights/run_checkpoint.h"
#include "runtime/exec/status.h"
#include "runtime/watch/banners.h"
#include "runtime/watch/status_folder.h"
#include "runtime/watch/watch.h"
#include "runtime/watch/watchdog.h"

namespace pipewright {

namespace {

// Returns how many seconds after its ranks mpirun may end before it counts as hanging: Open MPI
// 4.1.4 with PMIx 4.2.2 sometimes hangs when it exits.
int HangsAfter() {
  const char* text = std::getenv("PIPEWRIGHT_MPIRUN_LIMIT");
  const int seconds = text ? std::atoi(text) : 0;
  return seconds > 0 ? seconds : 15;
}

// Files that mpirun has open (27 and 4 for each rank of its host, Open MPI 4.1.4), and a few more.
constexpr rlim_t kFiles = 32, kFilesOfRank = 4;

struct RunEnd {
  int code = 0;             // as in a shell: 128 + signal
  bool asked = false;       // to end after its step
  bool terminated = false;  // by a signal to the supervisor
  int signal = 0;           // that signal
  bool hung = false;        // it was killed because it did not end after its ranks
};

struct WaitLimits {
  int limit = 0;       // seconds until the process is ended; 0: none
  bool stops = false;  // a first SIGINT asks it to end after its step
  // For an mpirun: the number of ranks that it starts and the folder of their status files.
  int ranks = 0;
  std::string folder = "";
  bool one_host = true;  // all ranks are here
};

sigset_t Handled() {
  sigset_t set;
  sigemptyset(&set);
  for (int signal : {SIGTERM, SIGINT, SIGUSR1, SIGTSTP, SIGCHLD}) {
    struct sigaction now = {};
    sigaction(signal, nullptr, &now);
    if (now.sa_handler != SIG_IGN) sigaddset(&set, signal);  // ignored: run in background
  }
  return set;
}

// Starts a process with `stderr_file` as its stderr; -1: /dev/null is its stdin, stdout and stderr.
int Start(const std::vector<std::string>& command, int stderr_file) {
  std::vector<char*> words;
  for (const std::string& word : command) words.push_back(const_cast<char*>(word.c_str()));
  words.push_back(nullptr);
  int pid = fork();
  if (pid < 0) throw Error("fork", strerror(errno));
  if (pid > 0) return pid;
  prctl(PR_SET_PDEATHSIG, SIGTERM);
  std::signal(SIGPIPE, SIG_DFL);
  // Ctrl-C and Ctrl-Z at the terminal reach only the supervisor, which decides what to forward.
  setpgid(0, 0);
  sigset_t set = Handled();
  sigprocmask(SIG_UNBLOCK, &set, nullptr);
  if (stderr_file >= 0) dup2(stderr_file, STDERR_FILENO);
  if (stderr_file < 0) {
    int null = open("/dev/null", O_RDWR);
    for (int file : {0, 1, 2}) dup2(null, file);
  }
  execvp(words[0], words.data());
  std::fprintf(stderr, "pipewright-run: %s: %s\n", words[0], strerror(errno));
  _exit(127);
}

// Stops the process and this one until the shell continues this one.
void Pause(int pid) {
  kill(pid, SIGTSTP);
  kill(getpid(), SIGSTOP);
  kill(pid, SIGCONT);
}

// Returns false if stdout or stderr would block, because its reader has not read everything.
bool AllIsShown() {
  pollfd files[] = {{STDOUT_FILENO, POLLOUT, 0}, {STDERR_FILENO, POLLOUT, 0}};
  return poll(files, 2, 0) == 2;
}

// Returns true if all ranks were on this host and have ended.
bool RanksOver(const WaitLimits& of) {
  const std::vector<RankStatus> ranks = ReadStatusFolder(of.folder);
  return of.ranks > 0 && static_cast<int>(ranks.size()) == of.ranks &&
         std::all_of(ranks.begin(), ranks.end(), [host = ThisHost()](const RankStatus& rank) {
           return rank.host == host && rank.pid > 0 && HasEnded(rank.pid);
         });
}

// Returns true if the ranks have met. From then on each handles the signals that mpirun forwards,
// which before would end mpirun or a rank. Assumes that ranks on other hosts have met.
bool TakeSignals(const WaitLimits& of) {
  bool met = !of.one_host;
  for (int rank = 0; rank < of.ranks && !met; ++rank)
    met = access(StatusPath(of.folder, rank).c_str(), F_OK) == 0;
  return met;
}

// Waits for the process and forwards signals. Kills it if it has not ended HangsAfter() seconds
// after its ranks.
RunEnd WaitFor(int pid, const WaitLimits& limits) {
  const int hangs = HangsAfter();
  RunEnd end;
  sigset_t set = Handled();
  bool passed_on = true;  // the request to end after a step
  for (int waited = 0, over = 0;;) {
    int status = 0;
    const int waited_for = waitpid(pid, &status, WNOHANG);
    if (waited_for == pid) {
      end.code = WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
      return end;
    }
    if (waited_for < 0 && errno == ECHILD) {  // how it ended is lost
      end.code = kFailure;
      return end;
    }
    timespec second{1, 0};
    int signal = sigtimedwait(&set, nullptr, &second);
    if (signal == SIGTSTP) Pause(pid);
    if (signal == SIGUSR1 || (signal == SIGINT && limits.stops && !end.asked)) {
      end.asked = true;
      passed_on = false;
      if (signal == SIGINT)
        std::fprintf(stderr, "%spipewright-run: the run is ended by SIGINT\n%s", BeforeMessage(),
                     kEndsAfterStep);
    } else if (signal == SIGTERM || signal == SIGINT) {
      end.terminated = true;
      end.signal = signal;
      kill(pid, SIGTERM);
    }
    if (!passed_on && TakeSignals(limits)) {
      kill(pid, SIGUSR1);
      passed_on = true;
    }
    if (signal >= 0 || errno != EAGAIN) continue;
    if (limits.limit > 0 && ++waited >= limits.limit) kill(pid, SIGKILL);
    over = end.hung || (AllIsShown() && RanksOver(limits)) ? over + 1 : 0;
    end.hung = over >= hangs;
    // Signals the whole group, with what it has started besides the ranks.
    if (over == hangs) kill(-pid, SIGTERM);
    if (over == hangs + 3) kill(-pid, SIGKILL);
  }
}

std::vector<std::string> MpirunWords(const SuperviseOptions& options) {
  std::vector<std::string> words;
  for (const std::string& word : Split(options.mpirun, ' '))
    if (!word.empty()) words.push_back(word);
  return words;
}

std::string NameOf(const std::string& host) { return host.substr(0, host.find(':')); }
int Slots(const std::string& host) {
  size_t colon = host.find(':');
  return colon == std::string::npos ? 1 : std::max(1, std::atoi(host.c_str() + colon + 1));
}

// Lets mpirun start as root, as in a container, and on one machine with more ranks than cores.
// Keeps what the user has set.
void SetMpirunDefaults(bool one_machine) {
  auto set = [](const char* name, const char* value) { setenv(name, value, 0); };
  if (geteuid() == 0) {
    set("OMPI_ALLOW_RUN_AS_ROOT", "1");
    set("OMPI_ALLOW_RUN_AS_ROOT_CONFIRM", "1");
  }
  if (!one_machine) return;
  set("OMPI_MCA_rmaps_base_oversubscribe", "1");
  set("OMPI_MCA_hwloc_base_binding_policy", "none");
  set("PRTE_MCA_rmaps_default_mapping_policy", ":oversubscribe");  // the same for Open MPI 5
  set("PRTE_MCA_hwloc_default_binding_policy", "none");
}

class Supervisor {
 public:
  explicit Supervisor(const SuperviseOptions& options)
      : options_(options), hosts_(options.hosts), ranks_(options.ranks) {
    CheckOpenFiles(options);
    RemoveUnusedStatusFolders();
    folder_ = StatusBase() + "/pipewright-supervisor-XXXXXX";
    if (!mkdtemp(folder_.data())) throw Error(folder_, strerror(errno));
    use_ = StatusFolderUse(folder_);
    setenv("PIPEWRIGHT_STATUS", folder_.c_str(), 1);
    SetMpirunDefaults(hosts_.empty());
    // The training is worth more than what is said of it.
    std::signal(SIGPIPE, SIG_IGN);
    sigset_t set = Handled();
    sigprocmask(SIG_BLOCK, &set, nullptr);
  }
  ~Supervisor() {
    std::error_code ignored;
    std::filesystem::remove_all(folder_, ignored);
  }

  int Run() {
    int64_t reached = -1;  // last step of the previous runs
    const std::string before = NewestVersion();
    if (!options_.resume_from.empty())
      for (const std::string& path : ListCheckpoints(options_.checkpoints))
        foreign_.insert(VersionOf(path));
    for (int restart = 0;; ++restart) {
      const std::string newest = NewestVersion();
      const bool as_asked = !options_.resume_from.empty() && newest == before;
      const std::string from = as_asked ? options_.resume_from : ChooseCheckpoint();
      const RunEnd end = RunOnce(from);
      if (end.code == kSuccess || end.code == kUsage || end.terminated || end.asked)
        return end.code;
      std::vector<RankStatus> ranks = ReadStatusFolder(folder_);
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
          Say(text +
              (agreed ? "; another run would fail the same way" : " and is not started again"));
        return end.code;
      }
      // A run that wrote a newer checkpoint did not fail because of the one it began with.
      if (step >= 0 && !from.empty() && NewestVersion() == newest) ++failures_[from];
      if (NewestVersion() != newest) failures_.erase(Newest());
      if (options_.elastic) {
        const RunEnd told = Shrink(step <= reached);
        if (told.terminated) return 128 + told.signal;
        if (told.asked) {
          Say(text + " and is not started again, as asked");
          return end.code;
        }
      }
      reached = std::max(reached, step);
      Say(text + "; restart " + std::to_string(restart + 1) + " of " +
          std::to_string(options_.restarts) + " on " + Counted(ranks_, "rank"));
    }
  }

 private:
  RunEnd RunOnce(const std::string& from) {
    for (const auto& entry : std::filesystem::directory_iterator(folder_))
      if (const std::string name = entry.path().filename();
          name.ends_with(".status") || name.starts_with("ended-"))
        std::filesystem::remove(entry.path());
    BannerFilter filter;
    const int pid = Start(Command(from), filter.write_end());
    filter.CloseWriteEnd();
    RunEnd end = WaitFor(pid, {.stops = options_.stops,
                               .ranks = ranks_,
                               .folder = folder_,
                               .one_host = hosts_.empty()});
    EndRemains();
    if (end.terminated && hosts_.empty() && ReadStatusFolder(folder_).empty())
      Say("was ended by a signal before its ranks had started");
    end.code = CodeOfRanks(end);
    return end;
  }

  // Returns the exit code of a run. Ignores that of mpirun if mpirun hung, or if it reports a
  // failure although all ranks have finished, as Open MPI 4.1.4 sometimes does.
  int CodeOfRanks(const RunEnd& end) const {
    const std::vector<RankStatus> ranks = ReadStatusFolder(folder_);
    std::string unfinished;
    for (const RankStatus& rank : ranks)
      if (rank.state != RankState::kFinished)
        unfinished += "\n  " + DescribeRank(rank) + ": " + DescribePlace(rank);
    bool failed = !unfinished.empty() || static_cast<int>(ranks.size()) != ranks_;
    for (const auto& entry : std::filesystem::directory_iterator(folder_))
      failed |= entry.path().filename().string().starts_with("ended-");
    if (!end.hung && (failed || end.terminated || end.code == kSuccess)) return end.code;
    Say(MpirunWords(options_)[0] +
        (end.hung ? " did not end within " + std::to_string(HangsAfter()) + " s after its ranks, and was ended: "
                  : " ended with code " + std::to_string(end.code) + ", but ") +
        (failed ? "the run had failed" + unfinished : "every rank finished without an error"));
    return failed ? kFailure : kSuccess;
  }

  std::string Newest() const {
    const std::vector<std::string> there = ListCheckpoints(options_.checkpoints);
    return there.empty() ? "" : there[0];
  }

  // Names the newest checkpoint and when it was written: a run that went back may replace the one
  // that was there.
  std::string NewestVersion() const {
    const std::string newest = Newest();
    return newest.empty() ? "" : VersionOf(newest);
  }

  static std::string VersionOf(const std::string& path) {
    std::error_code ignored;
    const auto time = std::filesystem::last_write_time(path + "/checkpoint.json", ignored);
    return path + " " + std::to_string(time.time_since_epoch().count());
  }

  // Returns the checkpoint that the next run resumes from: the newest, unless two runs have failed
  // from it. One of a later step than that is left from before the user went back.
  std::string ChooseCheckpoint() const {
    const std::vector<std::string> there = ListCheckpoints(options_.checkpoints);
    for (const std::string& path : there) {
      if (foreign_.count(VersionOf(path))) continue;
      if (auto found = failures_.find(path); found != failures_.end() && found->second > 1)
        continue;
      if (path == there[0]) return path;
      if (std::filesystem::path(path).filename() > std::filesystem::path(there[0]).filename())
        continue;
      try {
        VerifyRunCheckpoint(path);
      } catch (const std::exception& e) {
        Say(std::string("passed over: ") + e.what());
        continue;
      }
      Say("two runs have failed from " + there[0] + ": the next one resumes from the older " +
          path);
      return path;
    }
    if (!there.empty())
      Say("two runs have failed from " + there[0] + ", and no older checkpoint is left to try");
    return options_.resume_from.empty() ? Newest() : options_.resume_from;
  }

  std::vector<std::string> Command(const std::string& from) const {
    std::vector<std::string> words = MpirunWords(options_);
    if (!hosts_.empty()) words.insert(words.end(), {"--host", Join(hosts_, ",")});
    words.insert(words.end(), {"-n", std::to_string(ranks_)});
    words.insert(words.end(), options_.command.begin(), options_.command.end());
    const bool as_asked = !options_.resume_from.empty() && from == options_.resume_from;
    // With --resume, a damaged checkpoint would give way to one that this run has not written.
    if (options_.resumes && options_.resume_from.empty() && from == Newest())
      words.push_back("--resume");
    else if (options_.resumes || as_asked)
      words.insert(words.end(), {"--resume-from", from});
    std::string conf = options_.conf;
    if (ranks_ != options_.ranks) {
      conf = folder_ + "/conf-" + std::to_string(ranks_) + ".json";
      int modules = static_cast<int>(ReadManifest(options_.package).modules.size());
      WriteFile(conf, WriteConf(GroupModules(modules, ranks_)));
    }
    if (!conf.empty()) words.insert(words.end(), {"--conf", conf});
    return words;
  }

  // Returns which signals have arrived meanwhile. After one, no more hosts are probed.
  RunEnd Shrink(bool stuck) {
    RunEnd told;
    if (!hosts_.empty()) {
      std::erase_if(hosts_, [&](const std::string& host) {
        if (told.terminated || told.asked) return false;
        std::vector<std::string> words = MpirunWords(options_);
        words.insert(words.end(), {"--host", NameOf(host), "-n", "1", "true"});
        told = WaitFor(Start(words, -1), {.limit = 10});
        const bool answers = told.code == 0 || told.terminated;
        if (!answers) Say("host " + NameOf(host) + " does not answer and is left out");
        return !answers;
      });
      if (told.terminated || told.asked) return told;
      if (hosts_.empty()) throw Error("hosts", "none of them answers");
      int slots = 0;
      for (const std::string& host : hosts_) slots += Slots(host);
      if (slots < ranks_) {
        ranks_ = slots;
        return told;
      }
    }
    if (stuck && ranks_ > 1) --ranks_;
    return told;
  }

  // Ends all processes that the run has left on this host.
  void EndRemains() const {
    const std::string host = ThisHost();
    auto alive = [&] {
      std::vector<int> pids;
      for (const RankStatus& rank : ReadStatusFolder(folder_))
        if (rank.host == host && rank.pid > 0 && !HasEnded(rank.pid)) pids.push_back(rank.pid);
      return pids;
    };
    for (int i = 0; i < 20 && !alive().empty(); ++i) usleep(100000);
    for (int pid : alive()) kill(pid, SIGKILL);
    for (int i = 0; i < 50 && !alive().empty(); ++i) usleep(100000);
  }

  void Say(const std::string& text) const {
    std::fprintf(stderr, "%s%s: %s\n", BeforeMessage(),
                 Paint(options_.program, Severity::kError, STDERR_FILENO).c_str(), text.c_str());
  }

  const SuperviseOptions& options_;
  std::vector<std::string> hosts_;
  int ranks_;
  std::string folder_;
  StatusFolderUse use_;
  std::map<std::string, int> failures_;  // runs that failed from a checkpoint
  std::set<std::string> foreign_;        // versions of checkpoints that other runs had left there
};

}  // namespace

void CheckOpenFiles(const SuperviseOptions& options) {
  int here = options.hosts.empty() ? options.ranks : 0;
  for (const std::string& host : options.hosts) here = std::max(here, Slots(host));
  const rlim_t needs = kFiles + kFilesOfRank * static_cast<rlim_t>(here);
  rlimit limit{};
  if (getrlimit(RLIMIT_NOFILE, &limit) != 0 || limit.rlim_cur >= needs) return;
  throw Error(MpirunWords(options)[0],
              "needs " + std::to_string(needs) + " open files for " + Counted(here, "rank") +
                  ", and a process may open " + std::to_string(limit.rlim_cur) + " here",
              "raise the limit: ulimit -n " + std::to_string(needs));
}

int Supervise(const SuperviseOptions& options) { return Supervisor(options).Run(); }

}  // namespace pipewright
