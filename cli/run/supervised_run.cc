#include "cli/run/supervised_run.h"

#include <CLI/CLI.hpp>

#include "base/error.h"
#include "base/files/read_file.h"
#include "base/text.h"
#include "cli/numbers.h"
#include "cli/rank_arguments.h"
#include "formats/conf.h"
#include "formats/job.h"
#include "plan/placement/residence.h"
#include "runtime/watch/supervise.h"

namespace pipewright {

namespace {

SuperviseOptions supervisor;
std::string hosts;
bool wanted = false;

// The ranks do not get these options.
const std::vector<StartOption> kSupervised = {
    {"--restarts", true}, {"--mpirun", true}, {"--hosts", true},       {"-n", true},
    {"--elastic", false}, {"--conf", true},   {"--resume", false},     {"--resume-from", true},
    {"--tune", false},    {"--tuned", true},  {"--tune-memory", true}, {"--tune-budget", true},
};

// Returns the number of ranks of the run's conf or device map.
int RanksOf(const RunOptions& run) {
  Conf conf;
  if (run.device_map.empty())
    conf = ReadConf(ConfOfRun(run.package, run.conf));
  else
    conf = ReadResidence(ReadManifest(run.package),
                         ReadDeviceMap(ReadJson(run.device_map), run.device_map), run.device_map, 0)
               .conf;
  return CountRanks(conf);
}

}  // namespace

void AddSupervisor(CLI::App& app) {
  auto asks = [](CLI::Option* option) { option->each([](const std::string&) { wanted = true; }); };
  CLI::Option* restarts =
      app.add_option("--restarts", supervisor.restarts,
                     "start the ranks with mpirun; if the run fails, restart it from the latest "
                     "checkpoint, up to N times")
          ->check(AtLeast(0))
          ->type_name("N");
  asks(restarts);
  asks(app.add_option("-n", supervisor.ranks,
                      "number of ranks to start with mpirun (default with --restarts, --hosts or "
                      "--tune: as in the conf)")
           ->check(AtLeast(1))
           ->type_name("N"));
  app.add_flag("--elastic", supervisor.elastic,
               "with --restarts: restart with fewer ranks if fewer remain")
      ->needs(restarts);
  asks(app.add_option("--hosts", hosts,
                      "hosts to start ranks on with mpirun: NAME:RANKS,NAME:RANKS,..."));
  app.add_option(
         "--mpirun", supervisor.mpirun,
         "with -n, --hosts, --restarts or --tune: mpirun command, with any options of its own")
      ->capture_default_str();
}

bool IsSupervised() { return wanted; }

int SupervisedRanks() { return supervisor.ranks; }

std::string SupervisedHosts() { return hosts; }

std::string SupervisedMpirun() {
  return supervisor.mpirun == SuperviseOptions().mpirun ? "" : supervisor.mpirun;
}

bool Restarts() { return supervisor.restarts > 0 || supervisor.elastic; }
void SetSupervisedRanks(int ranks) { supervisor.ranks = ranks; }

void StartRanks(int ranks, const std::string& on_hosts) {
  supervisor.ranks = ranks, hosts = on_hosts;
  wanted = true;
}

void RunSupervised(const std::vector<std::string>& arguments, const RunOptions& run, bool trains) {
  if (supervisor.elastic && !run.device_map.empty())
    throw UsageError("--elastic",
                     "a device map fixes the number of ranks: leave out one of the two");
  SuperviseOptions o = supervisor;
  o.program = "pipewright-run";
  o.package = run.package;
  o.conf = run.conf;
  // Resumes from a checkpoint only if the user asks for it; starting ranks is not enough.
  o.resumes = trains && (o.restarts > 0 || run.resume);
  o.resume_from = run.resume_from;
  o.stops = trains;
  if (o.resumes) {
    std::string checkpoints = "unknown";
    try {
      checkpoints = ReadJobOf(run).checkpoint.folder;
    } catch (const Error&) {  // the ranks report it
    }
    if (checkpoints.empty() && o.restarts > 0 && run.resume_from.empty())
      throw Error(run.job, "--restarts: the job writes no checkpoints to restart from",
                  "add \"checkpoint\": {\"to\": \"FOLDER\", \"every\": STEPS}");
    o.resumes = !checkpoints.empty() || run.resume;
    if (o.resumes && checkpoints != "unknown") o.checkpoints = checkpoints;
  }
  if (!hosts.empty()) o.hosts = Split(hosts, ',');
  if (o.ranks == 0) o.ranks = RanksOf(run);
  o.command = RankArguments(arguments, kSupervised);
  throw CLI::RuntimeError(Supervise(o));
}

}  // namespace pipewright
