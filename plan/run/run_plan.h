// Makes the plan of a run from a package, a conf and a job.
#pragma once
#include <optional>
#include <string>
#include <vector>

#include "formats/conf.h"
#include "formats/job.h"
#include "formats/manifest.h"
#include "plan/plan.h"

namespace pipewright {

struct RunPlan {
  Manifest manifest;
  Conf conf;
  StageGraph graph;
  Plan plan;
  std::vector<std::vector<bool>> on_disk;  // [module][held]: weights of offloaded stages
  std::vector<std::string> warnings;
};

// Makes and validates the plan of a run: the job's schedule, lowered, or the job's plan file (a
// schedule without transfers is lowered, a whole plan runs as it is). If `forward_only`, the plan
// is one sweep over the microbatches. `conf`: a file, or "" for PACKAGE/conf/mp_conf.json. `ranks`:
// the number started; 0: as many as the conf names. `device_map`: a file with the location of each
// weight, used instead of a conf (plan/placement/residence.h). In a run that trains, only frozen
// parameters stay on disk. `outputs`: the model's outputs to keep (KeepOutputs). Throws Error if
// package, conf, job and ranks do not fit together.
RunPlan MakeRunPlan(const std::string& package, const std::string& conf, const Job& job, int ranks,
                    bool forward_only, const std::string& device_map = "",
                    const std::optional<std::vector<std::string>>& outputs = std::nullopt);

// Returns the plan for validation in a run that trains: one forward sweep over the microbatches.
Plan MakeForwardPlan(const Job& job, const RunPlan& run);

// Marks the stages that have a backward computation: those that train, or that follow one that
// does.
std::vector<bool> LearningStages(const Manifest& manifest, const Conf& conf);

// Returns true if the job's schedule is PipeDream's (pipedream, pipedream-2bw): steps overlap, and
// each microbatch uses the same version of a stage's weights in forward and backward.
bool IsAsynchronous(const Job& job);
// Returns this many consecutive steps of such a schedule, lowered and with its weight versions.
// Throws Error if run and job do not allow it.
Plan MakeAsynchronousPlan(const Job& job, const RunPlan& run, int64_t steps);
// Returns the number of versions by which its forwards are behind the newest weights.
int OlderVersions(const Job& job);
// Returns the number of steps from `step` on (from 0) that run without a pause: up to the next
// checkpoint, validation or the last step, and at most 1000.
int64_t StepsInARow(const Job& job, int64_t step);

}  // namespace pipewright
