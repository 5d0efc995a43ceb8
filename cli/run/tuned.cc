#include "cli/run/tuned.h"

#include <unistd.h>

#include <CLI/CLI.hpp>
#include <csignal>
#include <cstdlib>
#include <filesystem>
#include <iostream>
#include <optional>
#include <vector>

#include "base/error.h"
#include "base/files/atomic_file.h"
#include "base/files/owner_lock.h"
#include "base/process/launched_rank.h"
#include "base/process/messages.h"
#include "cli/run/launch.h"
#include "cli/run/supervised_run.h"
#include "formats/conf.h"
#include "formats/weights/run_checkpoint.h"
#include "runtime/transport/hosts.h"
#include "runtime/trial/written_buffers.h"
#include "tune/job/allowed.h"
#include "tune/job/minibatches.h"
#include "tune/measure/budget.h"
#include "tune/saved.h"
#include "tune/tune.h"

namespace pipewright {

namespace fs = std::filesystem;

namespace {

struct {
  bool wanted = false;
  std::string root, memory, budget = "2m";
} tune;

// Refuses changes on the command line that tune would choose itself.
void CheckChanges(const RunOptions& options) {
  if (!options.conf.empty() || !options.device_map.empty() || !options.schedule.empty())
    throw UsageError("--tune", "chooses conf and schedule",
                     "leave out --conf, --device-map and --schedule");
  if (!options.device.empty() && options.device != "cpu")
    throw UsageError("--device " + options.device, "--tune measures on CPUs",
                     "leave out --tune, or --device");
  if (!options.set.empty())
    throw UsageError("--set " + options.set[0], "--tune depends on the whole job",
                     "write it into the job");
  RefuseBodyOverride();
  if (!options.resume_from.empty() || Restarts())
    throw UsageError(
        options.resume_from.empty() ? "--restarts" : "--resume-from",
        "--tune resumes from the job's own checkpoints only, when --resume asks for it",
        "use `pipewright tune` first, and give its job and conf to the run");
}

// A run that resumes must do what its checkpoints were made with.
void CheckSameRun(const std::string& folder, const RunOptions& options) {
  const Job job = ReadJob(options.job), tuned = ReadJob(folder + "/job.json");
  const int64_t now = job.accumulate * SamplesOf(job), before = tuned.accumulate * SamplesOf(tuned);
  if (now != before)
    throw Error(options.job,
                "a step has " + std::to_string(now) + " samples, and had " +
                    std::to_string(before) + " when --tune chose how to run it",
                "resume without --tune");
  if (SamplesOf(job) != SamplesOf(tuned)) {
    const std::string why =
        tuned.accumulate > 1 ? "a step had several minibatches then" : WhyNotMerged(job);
    if (!why.empty())
      throw Error(options.job,
                  "a minibatch has " + std::to_string(SamplesOf(job)) + " samples, and had " +
                      std::to_string(SamplesOf(tuned)) +
                      " when --tune chose how to run it; they cannot be merged: " + why,
                  "resume without --tune");
  }
  const int ranks = CountRanks(ReadConf(folder + "/conf.json"));
  if (ranks > StartedRanks())
    throw Error("--tune",
                "the checkpoints were made with a result for " + std::to_string(ranks) +
                    " ranks, and this run has " + std::to_string(StartedRanks()),
                "start as many, or resume without --tune");
}

// Returns the folder of results: PACKAGE/tuned, or --tuned.
std::string Root(const RunOptions& options) {
  return tune.root.empty() ? options.package + "/tuned" : tune.root;
}

void CheckWritable(const RunOptions& options) {
  if (tune.root.empty() && access(options.package.c_str(), W_OK) != 0)
    throw Error(options.package, "cannot be written, and --tune keeps its result there",
                "name another folder: --tuned FOLDER");
}

TuneStart StartOfRun() {
  return ThreadRanks() > 0 ? TuneStart() : TuneStart{SupervisedHosts(), SupervisedMpirun()};
}

Json KeyOf(const RunOptions& options) {
  return TunedKey({options.package, StartedRanks(), StartOfRun(), tune.memory, ThreadRanks() > 0},
                  ReadJob(options.job), ReadManifest(options.package));
}

// Returns the folder of the result for this run, which it makes if there is none.
std::string FindOrTune(const RunOptions& options, bool quiet) {
  const std::string folders = Root(options);
  const bool in_process = ThreadRanks() > 0;
  const Json key = KeyOf(options);
  const std::string folder = TunedFolder(folders, key);
  if (IsTuned(folder, key)) {
    if (const double cut = CutOffAfter(folder); cut > 0)
      PrintNote("the result of tune was cut off after " + DurationText(cut) + ": delete " + folder +
                " to tune again, with a longer --tune-budget");
    return folder;
  }
  CheckWritable(options);
  CreateFolders(folder);
  OwnerLock lock(OwnerLock::FileFor(folder, true));
  if (!lock.Take())
    throw Error(folder, "another process tunes there: " + lock.owner().text,
                "start again when it is done");
  if (IsTuned(folder, key)) return folder;  // another process has tuned meanwhile
  if (const std::string other = OtherTuned(folders, key); !other.empty())
    PrintNote("a result of tune is not used: " + other);
  TuneRequest request;
  request.package = options.package, request.job = options.job, request.output = folder;
  request.options = "--tune-", request.memory = tune.memory, request.ranks = StartedRanks();
  request.ranks_option = in_process ? "--in-process" : "-n";
  request.budget = ParseDuration(tune.budget, "--tune-budget");
  request.in_process = in_process, request.processes = !in_process;
  request.start = StartOfRun(), request.force = true, request.quiet = quiet;
  const TuneOutcome outcome =
      Tune(request, WrittenBuffers(options.package, ReadManifest(options.package)));
  for (const std::string& note : outcome.notes) PrintNote(note);
  PrintNote(TuneVerdict(outcome));
  if (outcome.interrupted) {
    PrintNote("tune was interrupted, and the run is not started");
    throw CLI::RuntimeError(128 + SIGINT);
  }
  WriteTunedKey(folder, key, outcome.cut_off ? request.budget : 0);
  return folder;
}

// Makes this process the one that starts the ranks: as many as mpirun did, on the same hosts, or
// else as many as the package is for. Ends the others that mpirun started.
void StartRanksHere(const RunOptions& options) {
  if (StartedRanks() > 0 && LaunchedRanks() > (ThreadRanks() > 0 ? 1 : 0))
    throw UsageError("--tune", "mpirun starts ranks, and so does this program",
                     "leave out mpirun, or -n and --in-process");
  if (StartedRanks() > 0) return;
  int ranks = 0;
  std::string hosts = SupervisedHosts();
  if (LaunchedRanks() > 0) {
    const std::optional<std::vector<std::string>> all = HostsUnderMpirun("--tune");
    if (!all) throw CLI::RuntimeError(kSuccess);
    ranks = static_cast<int>(all->size());
    if (hosts.empty()) hosts = HostList(*all);
  } else {
    const char* tasks = std::getenv("SLURM_STEP_NUM_TASKS");  // the only sign of `srun --mpi=none`
    if (LaunchedRank() > 0 || std::getenv("PMIX_RANK") || std::getenv("PMI_RANK") ||
        (tasks && std::atoi(tasks) > 1))
      throw UsageError("--tune", "needs to start the ranks itself, and another program has",
                       "start pipewright-run with -n N, or with mpirun");
    ranks = CountRanks(ReadConf(ConfOfRun(options.package, "")));
  }
  StartRanks(ranks, hosts);
}

}  // namespace

void AddTune(CLI::App& app) {
  app.add_flag("--tune", tune.wanted,
               "run as `pipewright tune` finds best, and find it first if there is no result for "
               "this package, job, ranks and machine");
  app.add_option("--tuned", tune.root, "with --tune: folder of results (default: PACKAGE/tuned)");
  app.add_option("--tune-memory", tune.memory,
                 "with --tune: memory limit for the tensors of each rank, such as 8GiB");
  app.add_option("--tune-budget", tune.budget, "with --tune: time to find it (default: 2m)")
      ->type_name("TIME");
}

void UseTuned(RunOptions& options, bool quiet) {
  if (!tune.wanted) return;
  CheckChanges(options);
  StartRanksHere(options);
  const std::string checkpoints = ReadJobOf(options).checkpoint.folder;
  bool goes_on = !checkpoints.empty() && !ListCheckpoints(checkpoints).empty();
  std::string folder;
  if (goes_on && !options.resume)
    throw Error(checkpoints, "holds checkpoints of an earlier run",
                "resume it (--resume), or name another folder");
  // Other hosts may hold the checkpoints.
  if (options.resume && !checkpoints.empty() && !SupervisedHosts().empty())
    goes_on = goes_on || !RecordedTuned(checkpoints).empty();
  if (goes_on) {
    folder = RecordedTuned(checkpoints);
    if (folder.empty()) {
      PrintNote("the checkpoints in " + checkpoints +
                " were made without --tune: the job runs as it is");
      SetStarted(StartedRanks(), options.job, options.job);
      return;
    }
    CheckSameRun(folder, options);
    if (const double cut = CutOffAfter(folder); cut > 0)
      PrintNote("the checkpoints were made with a result of tune that was cut off after " +
                DurationText(cut));
    if (const std::string other = OtherKey(folder, KeyOf(options)); !other.empty())
      PrintNote("the checkpoints were made with a result of tune that is for " + other +
                "; the run goes on with it");
  } else {
    folder = FindOrTune(options, quiet);
  }
  const std::string job = RenewTunedJob(folder, options.job);
  if (!checkpoints.empty()) {
    // A run that goes on there will resume with the record.
    OwnerLock lock(OwnerLock::FileFor(checkpoints, true));
    if (!goes_on && fs::exists(checkpoints) && !lock.Take())
      throw Error(checkpoints, "another run writes its checkpoints there: " + lock.owner().text,
                  "name another folder, or wait until that run has ended");
    RecordTuned(checkpoints, folder);
  }
  const int ranks = CountRanks(ReadConf(folder + "/conf.json"));
  PrintNote("runs as in " + folder + ", on " + std::to_string(ranks) +
            (ranks == 1 ? " rank" : " ranks"));
  SetStarted(ranks, options.job, job);
  options.job = job, options.conf = folder + "/conf.json";
}

}  // namespace pipewright
