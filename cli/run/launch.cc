#include "cli/run/launch.h"

#include <CLI/CLI.hpp>
#include <algorithm>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <string>
#include <vector>

#include "base/error.h"
#include "base/process/launched_rank.h"
#include "base/process/messages.h"
#include "base/process/terminal.h"
#include "cli/numbers.h"
#include "cli/run/supervised_run.h"
#include "runtime/nccl/cuda_environment.h"
#include "runtime/transport/thread_transport.h"
#include "runtime/watch/watch.h"
#ifdef PIPEWRIGHT_MPI
#include "runtime/transport/mpi_transport.h"
#endif

namespace pipewright {

namespace {

int in_process = 0;  // number of ranks as threads; 0: ranks are MPI processes
StallOptions stall = StallOptionsFromEnvironment();
std::vector<std::string> arguments;  // the whole command line

// Set by signals if ranks are threads, and polled a few times a second (ThreadOptions::tick).
volatile std::sig_atomic_t stop_signal = 0, end_signal = 0;

bool trains = false;

// Handles signals as the watch of a rank under MPI does.
void HandleSignals(std::deque<StatusFile>& ranks) {
  if (stop_signal) ranks[0].RequestStop();
  const int signal = end_signal;
  if (!signal) return;
  end_signal = 0;
  for (const StatusFile& rank : ranks) {
    RankStatus now = rank.Read();
    std::fprintf(stderr, "%spipewright-run: %s is ended by %s: %s\n", BeforeMessage(),
                 DescribeRank(now).c_str(), signal == SIGINT ? "SIGINT" : "SIGTERM",
                 DescribePlace(now).c_str());
  }
  if (trains && StopsFirst(ranks[0].Read())) {
    std::fputs(kEndsAfterStep, stderr);
    return ranks[0].RequestStop();
  }
  std::signal(signal, SIG_DFL);
  std::raise(signal);
}

void CatchSignals() {
  // A program that starts this one with blocked signals does not mean that it can never be ended.
  sigset_t handled;
  sigemptyset(&handled);
  for (const int signal : {SIGUSR1, SIGTERM, SIGINT}) sigaddset(&handled, signal);
  pthread_sigmask(SIG_UNBLOCK, &handled, nullptr);
  std::signal(SIGUSR1, [](int) { stop_signal = 1; });
  // Training continues when the reader of its output is gone: its weights matter more.
  if (trains) std::signal(SIGPIPE, SIG_IGN);
  for (const int signal : {SIGTERM, SIGINT})
    if (std::signal(signal, [](int number) { end_signal = number; }) == SIG_IGN)
      std::signal(signal, SIG_IGN);  // it runs in the background of a shell
}

}  // namespace

int ThreadRanks() { return in_process; }

void SetCommandLine(int argc, char** argv) { arguments.assign(argv, argv + argc); }

int StartedRanks() { return in_process > 0 ? in_process : SupervisedRanks(); }

void SetStarted(int ranks, const std::string& job, const std::string& other_job) {
  if (in_process > 0)
    in_process = ranks;
  else
    SetSupervisedRanks(ranks);
  std::replace(arguments.begin(), arguments.end(), job, other_job);
}

void RunRanks(RunOptions& options, const LaunchTraits& traits,
              const std::function<void(Transport&)>& work) {
  SetCudaEnvironment();
  if (IsSupervised() || in_process > 0) OfferProgressLine(traits.progress_line);
  if (IsSupervised()) OfferColors();
  if (IsSupervised()) RunSupervised(arguments, options, traits.trains);
  if (in_process > 0) {
    if (LaunchedRanks() > 1)
      throw UsageError("--in-process: mpirun started " + std::to_string(LaunchedRanks()) +
                       " processes, and each would run every rank\n  start pipewright-run without "
                       "mpirun, or leave out --in-process");
    trains = traits.trains;
    CatchSignals();
    // mpirun binds each rank to a core. Without this, each thread rank would use all cores.
    if (in_process > 1 && options.threads == 0 && !std::getenv("OMP_NUM_THREADS"))
      options.threads = 1;
    ThreadOptions threads;
    threads.stall = stall;
    threads.tick = HandleSignals;
    try {
      RunThreads(in_process, work, threads);
    } catch (const AgreedError& e) {
      std::fflush(nullptr);
      const std::string name = Paint("pipewright-run", Severity::kError, STDERR_FILENO);
      std::fputs(e.Shown(name).c_str(), stderr);
      throw CLI::RuntimeError(kFailure);
    }
    return;
  }
#ifdef PIPEWRIGHT_MPI
  WatchOptions watch = WatchOptionsFromEnvironment("pipewright-run");
  watch.stall = stall;
  watch.stops = traits.trains;
  auto body = [&](Transport& transport) {
    work(transport);
    return static_cast<int>(kSuccess);
  };
  int code = RunMpi(nullptr, nullptr, watch, body);
  if (code != kSuccess) throw CLI::RuntimeError(code);
#else
  throw Error("pipewright-run", "was built without MPI", "run ranks as threads: --in-process N");
#endif
}

void AddLaunchOptions(CLI::App& app) {
  app.add_option("--in-process", in_process, "run N ranks as threads of this process, without MPI")
      ->check(InRange(1, 1024))
      ->type_name("N");
  AddSupervisor(app);
  app.add_flag("--synchronous-sends")
      ->description("accepted for older scripts, without effect: sends are always synchronous");
  app.add_option("--stall-limit", stall.limit,
                 "end the run after S seconds in which every rank waits for another, or a rank is "
                 "stopped; 0: never")
      ->check(NumberAtLeast(0))
      ->capture_default_str()
      ->type_name("S");
  app.add_option("--stall-report", stall.report,
                 "report which rank waits for what after S seconds without progress; 0: never")
      ->check(NumberAtLeast(0))
      ->capture_default_str()
      ->type_name("S");
}

}  // namespace pipewright
