// A partition as JSON, as a table for people and as a picture.
#pragma once
#include <string>

#include "base/json.h"
#include "formats/conf.h"
#include "formats/graph_text.h"
#include "plan/partition/pipedream/optimizer.h"
#include "plan/partition/solve.h"

namespace pipewright {

// Every report has these, whichever search it comes from.
struct PartitionReport {
  struct Stage {
    std::string device;  // "gpu0", "cpu0"; the first of its replicas
    int replicas = 1;
    std::vector<int> ranks;  // numbers of its devices
    std::vector<std::string> nodes;
    // The first and last of the nodes in an order of execution; backward ones, and weights that are
    // nodes, do not count.
    std::string first, last;
    double compute = 0, transfer = 0, memory = 0;
    double load = 0;  // what of the two the objective counts
  };
  bool feasible = false;
  bool proven = false;
  std::string reason;  // where none is feasible: why, and what would be, if that can be told
  double objective = kInfinity, lower_bound = 0;
  std::string mode, time_unit;
  double seconds = 0;  // that the search took
  bool numeric_names = false;
  std::vector<Stage> stages;
  Json more = Json::object();  // printed after the rest
};

PartitionReport MakeReport(const PartitionProblem& problem, const PartitionResult& result);
PartitionReport MakeReport(const ModelGraph& graph, const PipeDreamResult& result);

// {"feasible", "objective", "lower_bound", "gap", "mode", "seconds", "stages": [...], ...}. An
// infeasible partition has "objective": null.
Json ReportJson(const PartitionReport& report);
std::string ReportTable(const PartitionReport& report);
// Two lines: what binds, and what the best partition without that stage costs, against `report`'s.
std::string ExplainText(const PartitionReport& report, const Explanation& explanation);

// The graph in DOT, coloured by stage, with the costs of every node.
std::string GraphDot(const ModelGraph& graph);

// All modules as one stage on all ranks, one rank a stage, and as partitioned.
struct StageConfs {
  Conf dp, mp, hybrid;
};
// One module a stage.
StageConfs MakeStageConfs(const std::vector<int>& replicas);
// Modules as `module_to_stage` groups them; `ranks_of` the devices of each stage, which become
// ranks 0, 1, 2, ... in their order.
StageConfs MakeStageConfs(const std::vector<int>& module_to_stage,
                          const std::vector<std::vector<int>>& ranks_of);

}  // namespace pipewright
