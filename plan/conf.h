// Which modules form a stage and which ranks run it: PipeDream's conf files, written for people.
#pragma once
#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

namespace pipewright {

struct Conf {
  std::vector<int> module_to_stage;  // one stage a module; see has_loss_entry
  // Whether the file gave one more entry, last, for the loss. It says nothing: the loss is computed
  // where its input is, and its stage may be one without ranks. Only a reader that knows the number
  // of modules can tell, so ReadConf keeps every entry in module_to_stage and CheckConf drops it.
  bool has_loss_entry = false;
  std::vector<std::vector<int>> stage_to_ranks;  // a stage's replicas; a rank may hold more stages
  std::optional<std::vector<int>> stage_to_depth;  // warm-up forwards of a stage
  std::vector<int> offloaded_stages = {};          // ascending; their weights come and go
  int64_t offload_memory = 0;  // bytes for those weights on each rank; 0: the two largest

  bool operator==(const Conf&) const = default;
};

// Reads {"module_to_stage_map": [0, 1, 1], "stage_to_rank_map": {"0": [0, 1], "1": [2]}} and the
// optional "stage_to_depth_map": {"0": 1, "1": 0} and "offload": {"stages": [1], "memory": "1GiB"}
// (memory may be absent). Everything that is wrong whatever the model is
// refused with file, line and column: other keys, a stage without ranks or modules, a rank repeated
// within a stage, negative or missing ranks (they are 0 to N-1).
Conf ReadConf(const std::string& path);
Conf ParseConf(const std::string& text, const std::string& path);

// Checks `conf` against a model of `modules` modules, whose values go along `module_edges` (from,
// to), and a job of `launched_ranks` ranks (-1: any number), and drops the loss's entry. Refused: a
// wrong number of entries, other ranks than launched, and stages that are not convex or are
// numbered against the flow of values. `path` is where the conf was read from, for the messages.
void CheckConf(Conf& conf, int modules, int launched_ranks,
               const std::vector<std::pair<int, int>>& module_edges, const std::string& path);

// Refuses, with the line, a conf that needs more or fewer ranks.
void CheckLaunchedRanks(const Conf& conf, int launched_ranks, const std::string& path);

// One stage a line where they are many. Reads back as it was.
std::string WriteConf(const Conf& conf);

// `modules` in order, in `ranks` groups whose sizes differ by at most one, each on its own rank.
Conf GroupModules(int modules, int ranks);

}  // namespace pipewright
