// Schedules by name: the order of the compute actions of every rank, without transfers.
#pragma once
#include <string>
#include <vector>

#include "plan/plan.h"

namespace pipewright {

// Stage -> its replicas. Microbatch i of a stage runs on replica i mod r.
using StagePlacement = std::vector<std::vector<int>>;

// Parses "loop" (stage s on rank s mod P), "v" (there and back again, any number of times), "both"
// (stage s on ranks s and P - 1 - s), or one entry per stage, "0,1,1,0", with replicas joined by +,
// "0+1,2". Throws Error.
StagePlacement ParsePlacement(const std::string& text, int ranks, int stages);

// Formats a placement for ParsePlacement.
std::string PlacementText(const StagePlacement& placement);

// Throws Error unless every stage has distinct ranks from 0 to `ranks` - 1 and every rank has a
// stage.
void CheckPlacement(const StagePlacement& placement, int ranks);

// Returns a schedule's default placement: loop, or v or both for the schedules made for them.
std::string DefaultPlacement(const std::string& name);
// Returns a schedule's default number of stages on this many ranks.
int DefaultStages(const std::string& name, int ranks);

struct ScheduleOptions {
  bool forward_only = false;
  bool of_run = false;  // the numbers come from a conf and a job, which errors name, not options
};

// Returns the names that MakeSchedule knows.
const std::vector<std::string>& ScheduleNames();
// Returns all names, including the searched and the asynchronous schedules.
std::vector<std::string> AllScheduleNames();
// Throws Error listing all names if there is no such schedule.
void CheckScheduleName(const std::string& name, const std::string& where);

// Keeps only the forwards, in their order. They depend on nothing else.
void DropBackward(Plan& plan);

// Makes a schedule. An empty `placement` means its default, `stages` 0 its default number. Throws
// Error with the number that does not fit and the nearest one that does.
Plan MakeSchedule(const std::string& name, int ranks, int stages, int microbatches,
                  const StagePlacement& placement, const ScheduleOptions& options = {});

}  // namespace pipewright
