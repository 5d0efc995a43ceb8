#include "report/prediction.h"

#include "base/error.h"
#include "base/text.h"
#include "formats/optimizer_state.h"
#include "plan/partition/io/stage_costs.h"
#include "plan/run/run_plan.h"

namespace pipewright {

Prediction PredictRun(const PackageView& view, const Job& job) {
  RunPlan run = MakeRunPlan(view.package, view.conf_path, job, 0, /*forward_only=*/false);
  if (!view.profile)
    throw Error(view.package, "has no profile, so its run cannot be predicted",
                "measure one: pipewright profile " + view.package + " --microbatch-size " +
                    std::to_string(job.microbatch_size));
  std::vector<int> stage_of;
  for (const ProfileNode& node : view.profile->nodes)
    stage_of.push_back(run.conf.module_to_stage[static_cast<size_t>(node.module)]);
  Prediction prediction{
      std::move(run.plan),
      ParseCosts(CostsOfStages(*view.profile, stage_of, StateTensorsPerParameter(job.optimizer)),
                 "profile"),
      {"the prediction leaves out the time of the loss and the optimizer, which "
       "`pipewright-run bench` measures (--costs, --trace)"}};
  if (view.profile->microbatch != job.microbatch_size)
    prediction.notes.push_back("the profile has microbatches of " +
                               Counted(view.profile->microbatch, "sample") + ", but the job has " +
                               std::to_string(job.microbatch_size) + ": pipewright profile " +
                               view.package + " --microbatch-size " +
                               std::to_string(job.microbatch_size));
  return prediction;
}

}  // namespace pipewright
