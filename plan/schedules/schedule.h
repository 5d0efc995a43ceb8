// Schedules by name: the order of the compute actions of every rank, without transfers.
#pragma once
#include <string>
#include <vector>

#include "plan/plan.h"

namespace pipewright {

// Stage -> its replicas. Microbatch i of a stage runs on replica i mod r.
using StagePlacement = std::vector<std::vector<int>>;

// "loop" (stage s on rank s mod P), "v" (there and back again, any number of times), "both" (stage
// s on ranks s and P - 1 - s), or one entry a stage: "0,1,1,0"; replicas are joined by +: "0+1,2".
// Throws Error.
StagePlacement ParsePlacement(const std::string& text, int ranks, int stages);

// As ParsePlacement reads it.
std::string PlacementText(const StagePlacement& placement);

// Throws Error unless every stage has ranks of `ranks`, none twice, and every rank a stage.
void CheckPlacement(const StagePlacement& placement, int ranks);

// The placement a schedule has by itself: loop, or v or both for the schedules made for them.
std::string DefaultPlacement(const std::string& name);
// The number of stages a schedule has by itself on so many ranks.
int DefaultStages(const std::string& name, int ranks);

struct ScheduleOptions {
  bool forward_only = false;
  bool of_run = false;  // a conf and a job give the numbers: errors speak of them, not of options
};

// Returns the names that MakeSchedule knows.
const std::vector<std::string>& ScheduleNames();
// The searched and the asynchronous ones, too.
std::vector<std::string> AllScheduleNames();
// Throws Error with all names there are for any other.
void CheckScheduleName(const std::string& name, const std::string& where);

// Leaves the forwards, in their order: what remains needs nothing else.
void DropBackward(Plan& plan);

// An empty `placement` stands for the schedule's own; stages = 0 for its own number. Throws Error
// with the number that does not fit and the nearest that does.
Plan MakeSchedule(const std::string& name, int ranks, int stages, int microbatches,
                  const StagePlacement& placement, const ScheduleOptions& options = {});

}  // namespace pipewright
