#include "tune/job/own_run.h"

#include <algorithm>

#include "base/error.h"
#include "base/files/read_file.h"
#include "base/text.h"
#include "plan/schedules/schedule.h"

namespace pipewright {

RunPlan OwnRun(const TuneRequest& request, const Job& job, const Manifest& manifest,
               std::string* why) {
  std::string reason;
  try {
    RunPlan run = MakeRunPlan(request.package, "", job, 0, request.infers());
    if (CountRanks(run.conf) <= request.ranks) return run;
    reason = "it is for " + Counted(CountRanks(run.conf), "rank");
  } catch (const Error& error) {
    reason = error.what();  // another conf may fit
  }
  const std::string schedule = job.plan.empty() ? job.schedule : Job().schedule;
  const int modules = static_cast<int>(manifest.modules.size()),
            ranks = std::min(request.ranks, modules),
            stages = std::min(DefaultStages(schedule, ranks), modules);
  Conf conf = GroupModules(modules, stages);
  conf.stage_to_ranks = ParsePlacement(DefaultPlacement(schedule), ranks, stages);
  if (why)
    *why = std::string(request.infers() ? "the plain run" : "the run as given") + " is on " +
           Counted(ranks, "rank") +
           ", with the modules evenly on them, since the package's conf.json cannot be used: " +
           reason;
  const std::string file = request.scratch + "/own_conf.json";
  WriteFile(file, WriteConf(conf));
  return MakeRunPlan(request.package, file, job, 0, request.infers());
}

}  // namespace pipewright
