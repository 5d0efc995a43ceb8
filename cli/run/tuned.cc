#include "cli/run/tuned.h"

#include <unistd.h>

#include <CLI/CLI.hpp>
#include <filesystem>
#include <iostream>

#include "base/error.h"
#include "base/process/messages.h"
#include "cli/run/launch.h"
#include "formats/conf.h"
#include "runtime/trial/written_buffers.h"
#include "tune/budget.h"
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
  for (const std::string& change : options.set)
    for (const char* key : {"microbatches", "microbatch_size", "minibatch_size", "schedule", "plan",
                            "recompute", "threads", "body"})
      if (change.starts_with(std::string(key) + "="))
        throw UsageError("--set " + change, "--tune depends on it", "write it into the job");
}

// Returns the folder of results: PACKAGE/tuned, or --tuned.
std::string Root(const RunOptions& options) {
  if (!tune.root.empty()) return tune.root;
  if (access(options.package.c_str(), W_OK) != 0)
    throw Error(options.package, "cannot be written, and --tune keeps its result there",
                "name another folder: --tuned FOLDER");
  return options.package + "/tuned";
}

// Returns the folder of the result for this run, which it makes if there is none.
std::string FindOrTune(const RunOptions& options) {
  const Job job = ReadJob(options.job);
  const Manifest manifest = ReadManifest(options.package);
  const std::string folders = Root(options);
  const Json key =
      TunedKey({options.package, StartedRanks(), StartedHosts(), tune.memory}, job, manifest);
  const std::string folder = TunedFolder(folders, key);
  if (IsTuned(folder, key)) return folder;
  if (const std::string other = OtherTuned(folders, key); !other.empty())
    PrintNote("a result of tune is not used: " + other);
  if (!StartedHosts().empty()) PrintNote("--tune measures on this host, not between hosts");
  TuneRequest request;
  request.package = options.package, request.job = options.job, request.output = folder;
  request.memory = tune.memory, request.ranks = StartedRanks();
  request.budget = ParseDuration(tune.budget, "--tune-budget");
  request.in_process = ThreadRanks() > 0, request.processes = !request.in_process;
  request.force = true;
  const TuneOutcome outcome = Tune(request, WrittenBuffers(options.package, manifest));
  for (const std::string& note : outcome.notes) PrintNote(note);
  WriteTunedKey(folder, key);
  return folder;
}

bool HoldsCheckpoints(const std::string& folder) {
  std::error_code none;
  for (const auto& entry : fs::directory_iterator(folder, none))
    if (entry.is_directory(none)) return true;
  return false;
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

void UseTuned(RunOptions& options) {
  if (!tune.wanted) return;
  CheckChanges(options);
  if (StartedRanks() == 0)
    throw UsageError("--tune", "needs to start the ranks itself",
                     "start pipewright-run without mpirun, with -n N or --in-process N");
  const bool resumes = options.resume || !options.resume_from.empty();
  const std::string checkpoints = ReadJobOf(options).checkpoint.folder;
  std::string folder;
  if (resumes && !checkpoints.empty()) {
    folder = RecordedTuned(checkpoints);
    if (folder.empty() && HoldsCheckpoints(checkpoints)) {
      PrintNote("the checkpoints in " + checkpoints +
                " were made without --tune: the job runs as it is");
      SetStarted(StartedRanks(), options.job, options.job);
      return;
    }
  }
  if (folder.empty()) folder = FindOrTune(options);
  RenewTunedJob(folder, options.job);
  if (!checkpoints.empty()) RecordTuned(checkpoints, folder);
  const int ranks = CountRanks(ReadConf(folder + "/conf.json"));
  PrintNote("runs as in " + folder + ", on " + std::to_string(ranks) +
            (ranks == 1 ? " rank" : " ranks"));
  SetStarted(ranks, options.job, folder + "/job.json");
  options.job = folder + "/job.json", options.conf = folder + "/conf.json";
}

}  // namespace pipewright
