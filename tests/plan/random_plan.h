// Makes random schedules, placements and stage graphs for the tests of plans.
#pragma once
#include <algorithm>
#include <optional>
#include <random>
#include <set>
#include <string>

#include "base/error.h"
#include "plan/plan.h"
#include "plan/schedules/schedule.h"

namespace pipewright {

struct RandomCase {
  std::string name;
  int ranks = 1, stages = 1, microbatches = 1;
  StagePlacement placement;  // empty: the schedule's own
  bool forward_only = false;
  StageGraph graph;
  Plan schedule;
};

inline int Pick(std::mt19937& random, int least, int most) {
  return least + static_cast<int>(random() % static_cast<unsigned>(most - least + 1));
}

// Places any stages on any ranks, with up to three replicas and no idle rank.
inline StagePlacement RandomPlacement(std::mt19937& random, int ranks, int stages) {
  StagePlacement placement(stages);
  for (int s = 0; s < stages; ++s) {
    std::set<int> chosen;
    int replicas = Pick(random, 0, 3) ? 1 : Pick(random, 1, std::min(3, ranks));
    while (static_cast<int>(chosen.size()) < replicas) chosen.insert(Pick(random, 0, ranks - 1));
    placement[s].assign(chosen.begin(), chosen.end());
    std::shuffle(placement[s].begin(), placement[s].end(), random);
  }
  for (int r = 0; r < ranks; ++r) {
    bool used = false;
    for (const auto& own : placement) used |= std::count(own.begin(), own.end(), r) > 0;
    if (!used) placement[Pick(random, 0, stages - 1)].push_back(r);
  }
  return placement;
}

// Returns edges mostly between neighbors, skips of any distance, edges without gradients, and
// shared weights.
inline StageGraph RandomGraph(std::mt19937& random, const StagePlacement& placement, int ranks) {
  StageGraph graph;
  graph.stages = static_cast<int>(placement.size());
  graph.ranks = ranks;
  graph.ranks_of = placement;
  bool plain = Pick(random, 0, 2) == 0;
  for (int s = 0; s < graph.stages; ++s)
    for (int t = s + 1; t < graph.stages; ++t)
      if (t == s + 1 ? plain || Pick(random, 0, 9) : !plain && Pick(random, 0, 4) == 0)
        graph.edges.push_back({s, t, plain || Pick(random, 0, 4) > 0, 4, 4});
  while (!plain && Pick(random, 0, 1)) {
    std::vector<int> group;
    for (int s = 0; s < graph.stages; ++s)
      if (Pick(random, 0, 2) == 0) group.push_back(s);
    if (group.size() > 1) graph.shared.push_back(group);
  }
  return graph;
}

// Returns a case, or nothing if the schedule refuses the numbers.
inline std::optional<RandomCase> MakeRandomCase(std::mt19937& random, const std::string& name) {
  RandomCase c;
  c.name = name;
  c.ranks = Pick(random, 1, 6);
  bool narrow = name == "zbv" || name.starts_with("v-") || name.starts_with("dualpipe") ||
                name == "chimera" || name == "hanayo";
  if (narrow && Pick(random, 0, 9)) {
    if (name == "chimera" || name == "dualpipe") c.ranks = 2 * Pick(random, 1, 3);
    c.stages = DefaultStages(name, c.ranks) * (name == "hanayo" ? Pick(random, 1, 2) : 1);
    c.microbatches =
        2 * Pick(random, 1, 7) - (name[0] != 'd' && name[0] != 'c' && Pick(random, 0, 1));
    if (name[0] == 'd') c.microbatches += 2 * c.ranks;
  } else {
    c.stages = Pick(random, 1, 4 * c.ranks);
    c.microbatches = Pick(random, 1, 13);
    if (Pick(random, 0, 1)) c.placement = RandomPlacement(random, c.ranks, c.stages);
  }
  c.forward_only = Pick(random, 0, 7) == 0;
  try {
    c.schedule = MakeSchedule(name, c.ranks, c.stages, c.microbatches, c.placement,
                              {.forward_only = c.forward_only});
  } catch (const Error&) {
    return std::nullopt;
  }
  StagePlacement placement =
      c.placement.empty() ? ParsePlacement(DefaultPlacement(name), c.ranks, c.stages) : c.placement;
  c.graph = RandomGraph(random, placement, c.ranks);
  return c;
}

}  // namespace pipewright
