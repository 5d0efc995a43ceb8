// Reads and checks conf files in PipeDream's format, which assign modules to stages and stages to
// ranks.
#pragma once
#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "base/error.h"

namespace pipewright {

struct Conf {
  std::vector<int> module_to_stage;  // the stage of each module; see has_loss_entry
  // True if the file has one more entry at the end, for the loss. It is ignored: the loss is
  // computed where its input is, and its stage may have no ranks. ReadConf keeps every entry in
  // module_to_stage; CheckConf, which knows the number of modules, drops the extra one.
  bool has_loss_entry = false;
  std::vector<std::vector<int>> stage_to_ranks;    // by stage: the ranks of its replicas
  std::optional<std::vector<int>> stage_to_depth;  // by stage: warm-up forwards
  std::vector<int> offloaded_stages = {};          // ascending; weights are loaded and evicted
  int64_t offload_memory = 0;  // bytes for those weights on each rank; 0: the two largest stages
  std::vector<std::string> devices = {};  // by rank, "cuda:0", for example; empty: not given

  bool operator==(const Conf&) const = default;
};

// Reads {"module_to_stage_map": [0, 1, 1], "stage_to_rank_map": {"0": [0, 1], "1": [2]}} and the
// optional "stage_to_depth_map": {"0": 1, "1": 0}, "offload": {"stages": [1], "memory": "1GiB"}
// (memory is optional) and "rank_to_device_map": {"0": "cuda:0", "1": "cpu"}. Throws Error with
// file, line and column for everything that is wrong for any model: other keys, a stage without
// ranks or modules, a rank repeated within a stage, negative or missing ranks (they are 0 to N-1).
Conf ReadConf(const std::string& path);
Conf ParseConf(const std::string& text, const std::string& path);

// Returns the path of a run's conf: `given`, or the package's own if that is empty. Throws Error if
// the package's own is missing; the suggested command makes one for `ranks` ranks (0: unknown).
std::string ConfOfRun(const std::string& package, const std::string& given, int ranks = 0);

// Checks `conf` against a model of `modules` modules, whose values flow along `module_edges` (from,
// to), and a job of `launched_ranks` ranks (-1: any number), and drops the loss's entry. Throws
// Error for a wrong number of entries, other ranks than launched, and stages that are not convex or
// are numbered against the flow of values. `path` is the conf's file, for messages.
void CheckConf(Conf& conf, int modules, int launched_ranks,
               const std::vector<std::pair<int, int>>& module_edges, const std::string& path);

// Reads and checks a conf. Adds every mistake to `mistakes`, not only the first, except those that
// may follow from another one. The conf is valid if nothing was added. Throws Error if the file
// cannot be read or is not JSON.
Conf ReadConf(const std::string& path, int modules, int launched_ranks,
              const std::vector<std::pair<int, int>>& module_edges, std::vector<Error>& mistakes);

// Returns the number of ranks that the conf names.
int CountRanks(const Conf& conf);

// Throws Error with the line if a conf needs more or fewer ranks.
void CheckLaunchedRanks(const Conf& conf, int launched_ranks, const std::string& path);

// Writes one stage per line if there are many. ReadConf reads the same conf back.
std::string WriteConf(const Conf& conf);

// Groups `modules` modules in order into `ranks` groups whose sizes differ by at most one, each on
// its own rank.
Conf GroupModules(int modules, int ranks);

}  // namespace pipewright
