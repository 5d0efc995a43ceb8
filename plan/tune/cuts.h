// Cuts of a package into stages, by the partition search.
#pragma once
#include <map>
#include <optional>
#include <tuple>
#include <vector>

#include "formats/conf.h"
#include "plan/tune/problem.h"

namespace pipewright {

inline constexpr int kAnyReplicas = 8;

struct CutChoice {
  const TuneProfile* profile = nullptr;  // of TuneProblem::profiles
  int stages = 1;
  // So many ranks share the stages' work as replicas: any number for each stage up to kAnyReplicas
  // ranks, equally many above, which is what a search of seconds can try. 0: each stage on one
  // rank.
  int ranks = 0;
  bool memory = false;  // the stages keep within the limits of their ranks
  auto operator<=>(const CutChoice&) const = default;
};

// Returns the stages that minimize the time of the slowest one, and with `ranks` or machines that
// differ in speed or memory their ranks (otherwise stage s is on rank s). None if the modules
// cannot form this many stages, or do not fit.
std::optional<Conf> CutInto(const TuneProblem& problem, const CutChoice& choice);

// Remembers cuts, which several schedules share.
class TuneCuts {
 public:
  explicit TuneCuts(const TuneProblem& problem) : problem_(problem) {}
  const std::optional<Conf>& At(const CutChoice& choice);

 private:
  const TuneProblem& problem_;
  std::map<CutChoice, std::optional<Conf>> cuts_;
};

}  // namespace pipewright
