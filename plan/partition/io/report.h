// Formats a partition as JSON, as a table for people to read, and as a picture.
#pragma once
#include <string>

#include "base/json.h"
#include "formats/conf.h"
#include "formats/graph_text.h"
#include "plan/partition/io/mode.h"
#include "plan/partition/pipedream/optimizer.h"
#include "plan/partition/solve.h"

namespace pipewright {

// The report of a partition from any search.
struct PartitionReport {
  struct Stage {
    std::string device;  // "gpu0", "cpu0"; the first of its replicas
    int replicas = 1;
    std::vector<int> ranks;  // numbers of its devices
    std::vector<std::string> nodes;
    // The first and last node in an order of execution, except backward nodes and nodes that are
    // weights.
    std::string first, last;
    double compute = 0, transfer = 0, memory = 0;
    double load = 0;  // the part of compute and transfer that the objective counts
  };
  bool feasible = false;
  bool proven = false;
  std::string reason;  // why no partition is feasible and how to change that; "" if not known
  double objective = kInfinity, lower_bound = 0;
  PartitionMode mode = PartitionMode::kExact;
  std::string time_unit;
  double seconds = 0;  // time of the search
  bool numeric_names = false;
  std::vector<Stage> stages;
  Json more = Json::object();  // printed after the rest
};

PartitionReport MakeReport(const PartitionProblem& problem, const PartitionResult& result);
PartitionReport MakeReport(const ModelGraph& graph, const PipeDreamResult& result);

// Returns {"feasible", "objective", "lower_bound", "gap", "mode", "seconds", "stages": [...], ...}.
// An infeasible partition has "objective": null.
Json ReportJson(const PartitionReport& report);
std::string ReportTable(const PartitionReport& report);
// Returns two lines: the bottleneck, and the objective of the best partition without that stage
// compared with `report`'s.
std::string ExplainText(const PartitionReport& report, const Explanation& explanation);

// Returns the graph in DOT, colored by stage, with the costs of every node.
std::string GraphDot(const ModelGraph& graph);

// The confs with all modules as one stage on all ranks, with one rank per stage, and as
// partitioned.
struct StageConfs {
  Conf dp, mp, hybrid;
};
// Returns the confs for one module per stage.
StageConfs MakeStageConfs(const std::vector<int>& replicas);
// Returns the confs for modules grouped by `module_to_stage`. `ranks_of` has the devices of each
// stage, which become ranks 0, 1, 2, ... in order.
StageConfs MakeStageConfs(const std::vector<int>& module_to_stage,
                          const std::vector<std::vector<int>>& ranks_of);

}  // namespace pipewright
