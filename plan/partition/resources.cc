#include "plan/error.h"
#include "plan/partition/stage_load.h"

namespace pipewright {

Resources::Resources(const PartitionProblem& problem) {
  std::vector<int> stride, limit;
  for (const DeviceClass& device : problem.devices) {
    stride.push_back(states);
    limit.push_back(device.count);
    states *= device.count + 1;
    devices += device.count;
    if (states > 100000) break;
  }
  bool count_stages = problem.stages >= 0 && problem.max_replicas > 1;
  int stage_stride = states;
  if (count_stages) states *= problem.stages + 1;
  if (states > 100000 || devices > 10000)
    throw Error("partition", "too many different kinds of devices to choose from",
                "give fewer kinds: devices of one kind cost little");
  for (int s = 0; s < states; ++s) {
    int total = 0, rest = 0;
    for (size_t c = 0; c < limit.size(); ++c) {
      int digit = s / stride[c] % (limit[c] + 1);
      total += digit;
      rest += (limit[c] - digit) * stride[c];
    }
    used.push_back(total);
    complement.push_back(rest);
    int stages = count_stages ? s / stage_stride : total;
    final.push_back(s > 0 && (problem.stages < 0 || stages == problem.stages));
  }
  for (size_t c = 0; c < limit.size(); ++c) {
    int most = problem.devices[c].host ? 1 : problem.max_replicas;
    for (int r = 1; r <= std::min(most, limit[c]); ++r) {
      options.push_back({static_cast<int>(c), r});
      steps.emplace_back();
      for (int s = 0; s < states; ++s) {
        if (s / stride[c] % (limit[c] + 1) + r > limit[c]) continue;
        if (count_stages && s / stage_stride == problem.stages) continue;
        steps.back().push_back({s, s + r * stride[c] + (count_stages ? stage_stride : 0), used[s]});
      }
    }
  }
}

}  // namespace pipewright
