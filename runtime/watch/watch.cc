#include "runtime/watch/watch.h"

#include <fcntl.h>
#include <pthread.h>
#include <sys/prctl.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <cmath>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <ctime>
#include <filesystem>
#include <mutex>
#include <random>
#include <thread>
#include <utility>
#include <vector>

#include "base/error.h"
#include "base/files/owner_lock.h"
#include "base/process/launched_rank.h"
#include "base/process/messages.h"
#include "base/text.h"
#include "runtime/exec/clock.h"
#include "runtime/exec/phase.h"
#include "runtime/watch/remote_hosts.h"
#include "runtime/watch/status_folder.h"
#include "runtime/watch/watchdog.h"

namespace pipewright {

namespace {

constexpr long kTick = 250;  // milliseconds; the guard counts beats at the same rate

StatusFile* watched = nullptr;  // for signal handlers, which take no argument

void MarkExit() {
  if (watched && watched->Read().state == RankState::kRunning)
    watched->SetState(RankState::kExited);
}

// Signals that end a process unless it catches them, besides those that the watch takes; the first
// five are those of crashes, which MPI catches too.
constexpr int kDeadly[] = {SIGSEGV, SIGBUS,  SIGFPE,  SIGILL,  SIGABRT, SIGHUP,    SIGQUIT, SIGPIPE,
                           SIGALRM, SIGTRAP, SIGUSR2, SIGXCPU, SIGXFSZ, SIGVTALRM, SIGPROF, SIGSYS};
constexpr size_t kDeadlyCount = sizeof(kDeadly) / sizeof(int), kCrashes = 5;
struct sigaction before_death[kDeadlyCount];

// Records the signal, then passes it on to the previous handler.
void MarkDeath(int signal) {
  if (watched) watched->SetSignal(signal);
  for (size_t i = 0; i < kDeadlyCount; ++i)
    if (kDeadly[i] == signal) sigaction(signal, &before_death[i], nullptr);
  raise(signal);  // delivered when this handler returns
}

// Called before and after MPI is initialized, which installs handlers of its own.
void CatchDeadlySignals() {
  struct sigaction action = {}, now = {};
  action.sa_handler = MarkDeath;
  for (size_t i = 0; i < kDeadlyCount; ++i) {
    sigaction(kDeadly[i], nullptr, &now);
    if (now.sa_handler == SIG_DFL || (i < kCrashes && now.sa_handler != MarkDeath))
      sigaction(kDeadly[i], &action, &before_death[i]);
  }
}

sigset_t WatchedSignals() {
  sigset_t set;
  sigemptyset(&set);
  sigaddset(&set, SIGTERM);
  sigaddset(&set, SIGUSR1);
  struct sigaction now = {};
  sigaction(SIGINT, nullptr, &now);
  if (now.sa_handler != SIG_IGN) sigaddset(&set, SIGINT);  // ignored: run in background
  return set;
}

// Returns null on all but the first rank of each host. Collective.
std::unique_ptr<RemoteHosts> MeetRemoteHosts(Transport& transport,
                                             const std::vector<std::string>& hosts, bool first_here,
                                             uint64_t token, const std::string& folder,
                                             const WatchOptions& options) {
  std::unique_ptr<RemoteHosts> mine;
  Phase(transport, "meeting the other hosts", [&] {
    if (first_here) mine = std::make_unique<RemoteHosts>();
  });
  std::vector<std::string> addresses = transport.AllGather(mine ? mine->address() : "");
  std::vector<RemoteHosts::Host> others;
  for (int rank = 0; mine && rank < transport.size(); ++rank) {
    if (hosts[rank] == hosts[transport.rank()]) continue;
    auto at = std::find_if(others.begin(), others.end(),
                           [&](const auto& other) { return other.name == hosts[rank]; });
    if (at == others.end()) at = others.insert(at, {hosts[rank], addresses[rank], {}});
    at->ranks.push_back(rank);
  }
  // Hosts that are heard now will be missed later. If no packets get through, silence means
  // nothing.
  bool heard = true;
  if (mine) {
    mine->Join(token, others);
    double start = Now();
    while (!(heard = mine->Exchange(folder, Now())) && Now() - start < 3) usleep(20000);
    mine->Exchange(folder, Now());  // the other may wait for messages sent before it was ready
  }
  std::vector<std::string> all = transport.AllGather(heard ? "" : "deaf");
  if (transport.rank() == 0 && std::count(all.begin(), all.end(), "deaf"))
    std::fprintf(stderr,
                 "%s: the hosts do not hear each other over UDP: a lost message or a cut link will "
                 "be reported, but not end the run\n",
                 options.program.c_str());
  return mine;
}

}  // namespace

WatchOptions WatchOptionsFromEnvironment(const std::string& program) {
  WatchOptions options;
  options.program = program;
  if (const char* folder = std::getenv("PIPEWRIGHT_STATUS")) options.folder = folder;
  return options;
}

bool StopsFirst(const RankStatus& rank) { return !rank.stop && (rank.step > 0 || rank.entry >= 0); }

struct Watch::State {
  explicit State(const WatchOptions& options) : options(options), judge(options.stall) {
    MakeStatus();
    guard = std::make_unique<Guard>(
        GuardSettings{options.program, options.stall.limit, !options.folder.empty()}, status, path);
    sigset_t set = WatchedSignals();
    pthread_sigmask(SIG_BLOCK, &set, &old_mask);
    watched = &status;
    CatchDeadlySignals();
    static bool once = std::atexit(MarkExit) == 0;
    (void)once;
    thread = std::thread([this] { Run(); });
  }

  ~State() {
    stop = true;
    pthread_kill(thread.native_handle(), SIGUSR1);
    thread.join();
    status.SetState(RankState::kFinished);
    guard.reset();
    watched = nullptr;
    pthread_sigmask(SIG_SETMASK, &old_mask, nullptr);
  }

  // Until the ranks have met, the file has a name only if a folder was asked for.
  void MakeStatus() {
    if (options.folder.empty()) try {
        status = StatusFile(StatusBase(), LaunchedRank());
        return;
      } catch (const Error&) {  // the file system has no files without names
      }
    path = (options.folder.empty() ? StatusBase() : options.folder) + "/pipewright-" + ThisHost() +
           "-" + std::to_string(getpid()) + ".status";
    status = StatusFile(path, LaunchedRank());
  }

  void MoveStatus(const std::string& to) {
    if (!path.empty()) {
      std::filesystem::rename(path, to);
    } else {
      const std::string mine = "/proc/self/fd/" + std::to_string(status.file());
      if (linkat(AT_FDCWD, mine.c_str(), AT_FDCWD, to.c_str(), AT_SYMLINK_FOLLOW) != 0)
        throw Error(to, std::string("cannot keep the status file: ") + std::strerror(errno));
    }
    path = to;
  }

  void Run() {
    prctl(PR_SET_NAME, "pipewright-watch");
    sigset_t set = WatchedSignals();
    timespec tick{0, kTick * 1000000};
    for (int ticks = 1; !stop; ++ticks) {
      int signal = sigtimedwait(&set, nullptr, &tick);
      if (stop) return;
      status.Beat();
      if (signal == SIGTERM || signal == SIGINT) EndOrStop(signal);
      if (signal == SIGUSR1) status.RequestStop();
      if (ticks % 4 == 0) Judge();
    }
  }

  // On the first signal, a rank that trains finishes its step and saves its work.
  void EndOrStop(int signal) {
    const RankStatus now = status.Read();
    std::unique_lock lock(mutex);
    const bool explained = EndIsExplained(folder, token);
    lock.unlock();
    if (!options.stops || !StopsFirst(now) || now.state != RankState::kRunning || explained)
      return Terminate(signal);
    Show(DescribeRank(now) + " is ended by " + SignalName(signal) + ": " + DescribePlace(now));
    if (now.rank == 0) std::fputs(kEndsAfterStep, stderr);
    status.SetSignal(signal);
    status.RequestStop();
  }

  // Judges the whole run; one rank of each host does this.
  void Judge() {
    std::lock_guard lock(mutex);
    if (!judging) return;
    std::vector<RankStatus> all = ReadStatusFolder(folder);
    bool known = true;
    // While this host was asleep or the run was paused, nobody was silent.
    const double now = Now();
    lived = judged < 0 ? now : lived + std::min(now - judged, 1.0);
    judged = now;
    if (remote_hosts) {
      known = remote_hosts->Exchange(folder, lived);
      for (RankStatus& other : remote_hosts->statuses()) all.push_back(std::move(other));
      std::string silent = remote_hosts->Silent(lived, options.stall.limit);
      if (options.stall.limit > 0 && !silent.empty()) {
        std::string text = "nothing has been heard of host " + silent + " for " +
                           std::to_string(std::lround(options.stall.limit)) + " s";
        for (const RankStatus& rank : all)
          text += "\n  " + DescribeRank(rank) + (rank.host == silent ? ", when last heard" : "") +
                  ": " + DescribePlace(rank);
        End(text);
      }
    }
    for (const RankStatus& other : all)
      if (other.stop) status.RequestStop();
    StallJudge::Verdict verdict = judge.Look(now, all, known);
    if (verdict.fatal && first) End(verdict.report);
    if (!verdict.report.empty() && first) Show(verdict.report);
  }

  [[noreturn]] void End(const std::string& why) {
    Show(why);
    status.SetState(RankState::kFailed);
    _exit(kFailure);
  }

  // mpirun terminates all ranks when one has died; then another rank's guard explains it.
  void Terminate(int signal) {
    std::lock_guard lock(mutex);
    // Otherwise it has already reported why it ends.
    if (status.Read().state == RankState::kRunning) {
      for (int i = 0; i < 10 && !EndIsExplained(folder, token); ++i) usleep(10000);
      RankStatus now = status.Read();
      if (!EndIsExplained(folder, token))
        Show(DescribeRank(now) + " is ended by " + SignalName(signal) + ": " + DescribePlace(now));
      status.SetState(RankState::kTerminated);
    }
    std::signal(signal, SIG_DFL);
    sigset_t set = WatchedSignals();
    pthread_sigmask(SIG_UNBLOCK, &set, nullptr);
    raise(signal);
  }

  static const char* SignalName(int signal) { return signal == SIGINT ? "SIGINT" : "SIGTERM"; }

  void Show(const std::string& text) const {
    std::string line = Paint(options.program, Severity::kError, STDERR_FILENO) + ": " + text + "\n";
    std::fwrite(line.data(), 1, line.size(), stderr);
  }

  const WatchOptions options;
  std::string path;  // the status file; "": it has no name yet
  StatusFile status;
  std::unique_ptr<Guard> guard;
  sigset_t old_mask;

  std::mutex mutex;  // guards the next nine members
  std::string folder, token;
  bool judging = false, first = false;        // judging: first of its host; first: of all
  std::unique_ptr<RemoteHosts> remote_hosts;  // null if there are no other hosts
  StallJudge judge;
  // The time of the last Judge, and a clock that stops while this process is stopped.
  double judged = -1, lived = 0;
  StatusFolderUse use;

  std::atomic<bool> stop{false};
  std::thread thread;
};

Watch::Watch(const WatchOptions& options) : state_(std::make_unique<State>(options)) {}
Watch::~Watch() = default;

void Watch::Join(Transport& transport) {
  State& s = *state_;
  CatchDeadlySignals();
  const int rank = transport.rank();
  std::string token = std::to_string(std::random_device()());
  std::vector<std::string> all = transport.AllGather(token + "\t" + ThisHost());
  std::vector<std::string> hosts;
  for (const std::string& one : all) hosts.push_back(one.substr(one.find('\t') + 1));
  bool first_here = std::find(hosts.begin(), hosts.end(), hosts[rank]) == hosts.begin() + rank;
  token = all[0].substr(0, all[0].find('\t'));
  std::string folder = s.options.folder;
  if (folder.empty())
    folder = StatusBase() + "/pipewright-" + std::to_string(getuid()) + "-" + token;
  s.status.SetRank(rank);
  // A folder that the user names may hold files of an earlier run, which would stop this one or get
  // processes killed that are not its ranks. All are gone before the first rank names its own.
  const std::string mine = std::filesystem::path(s.path).filename().string();
  const std::vector<std::string> names = transport.AllGather(mine);
  Phase(transport, "keeping status files", [&] {
    if (!s.options.folder.empty()) RemoveOtherStatusFiles(folder, {names.begin(), names.end()});
  });
  Phase(transport, "keeping status files", [&] {
    if (first_here) RemoveUnusedStatusFolders();
    StatusFolderUse use(folder);
    s.MoveStatus(StatusPath(folder, rank));
    std::lock_guard lock(s.mutex);
    s.use = std::move(use);
  });
  std::unique_ptr<RemoteHosts> remote_hosts;
  if (std::count(hosts.begin(), hosts.end(), hosts[0]) < transport.size())
    remote_hosts = MeetRemoteHosts(transport, hosts, first_here, Hash(token), folder, s.options);
  transport.SetHosts(std::move(hosts));
  s.guard->Join(folder, s.path, token, transport.size());
  transport.SetStatus(s.status);
  std::lock_guard lock(s.mutex);
  s.folder = folder, s.token = token;
  s.judging = first_here, s.first = rank == 0;
  s.remote_hosts = std::move(remote_hosts);
}

void Watch::Explain() {
  State& s = *state_;
  std::lock_guard lock(s.mutex);
  const std::string& folder = s.folder.empty() ? s.options.folder : s.folder;
  if (!folder.empty()) ExplainEnd(folder, s.token);
}

void Watch::GiveWay(int rank) {
  State& s = *state_;
  s.status.SetState(RankState::kFailed);
  std::string folder;
  {
    std::lock_guard lock(s.mutex);
    folder = s.folder;
  }
  auto lower_failed = [&] {
    if (folder.empty()) return false;  // Join was not called yet
    for (const RankStatus& other : ReadStatusFolder(folder))
      if (other.rank < rank && other.state == RankState::kFailed) return true;
    return false;
  };
  // Ranks of other hosts are invisible, so they get a head start. On a busy machine a visible rank
  // needs some time to exit.
  const double start = Now(), ahead = 0.2 * std::min(rank, 4);
  bool seen = false;  // its file disappears with it
  while (Now() - start < ahead || (Now() - start < 5 && (seen = seen || lower_failed())))
    usleep(20000);
}

}  // namespace pipewright
