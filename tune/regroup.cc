#include "tune/regroup.h"

namespace pipewright {

std::vector<int> StartsOfRuns(const Conf& conf) {
  std::vector<int> starts;
  for (size_t m = 1; m < conf.module_to_stage.size(); ++m)
    if (conf.module_to_stage[m] != conf.module_to_stage[m - 1])
      starts.push_back(static_cast<int>(m));
  return starts;
}

Conf ConfOfRuns(const Conf& conf) {
  Conf made = conf;
  made.module_to_stage = {conf.module_to_stage[0]};
  for (int start : StartsOfRuns(conf))
    made.module_to_stage.push_back(conf.module_to_stage[static_cast<size_t>(start)]);
  return made;
}

}  // namespace pipewright
