#include "tune/own_run.h"

#include <algorithm>

#include "base/error.h"
#include "base/files/read_file.h"
#include "plan/schedules/schedule.h"

namespace pipewright {

RunPlan OwnRun(const TuneRequest& request, const Job& job, const Manifest& manifest) {
  try {
    RunPlan run = MakeRunPlan(request.package, "", job, 0, request.infers());
    if (CountRanks(run.conf) <= request.ranks) return run;
  } catch (const Error&) {
    // Another conf may fit.
  }
  const std::string schedule = job.plan.empty() ? job.schedule : Job().schedule;
  const int modules = static_cast<int>(manifest.modules.size()),
            ranks = std::min(request.ranks, modules),
            stages = std::min(DefaultStages(schedule, ranks), modules);
  Conf conf = GroupModules(modules, stages);
  conf.stage_to_ranks = ParsePlacement(DefaultPlacement(schedule), ranks, stages);
  const std::string file = request.scratch + "/own_conf.json";
  WriteFile(file, WriteConf(conf));
  return MakeRunPlan(request.package, file, job, 0, request.infers());
}

}  // namespace pipewright
