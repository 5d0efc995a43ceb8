#include <algorithm>

#include "plan/error.h"
#include "plan/partition/stage_load.h"

namespace pipewright {

void Resources::AddOption(const StageOption& option) {
  options.push_back(option);
  steps.emplace_back();
}

static double SpeedOf(const DeviceClass& device) { return device.host ? kInfinity : device.speed; }

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
    double in_use = 0, left = 0;
    for (size_t c = 0; c < limit.size(); ++c) {
      int digit = s / stride[c] % (limit[c] + 1);
      total += digit;
      rest += (limit[c] - digit) * stride[c];
      if (digit > 0) in_use += digit * SpeedOf(problem.devices[c]);
      if (digit < limit[c]) left += (limit[c] - digit) * SpeedOf(problem.devices[c]);
    }
    used.push_back(total);
    speed.push_back(in_use);
    speed_left.push_back(left);
    complement.push_back(rest);
    int stages = count_stages ? s / stage_stride : total;
    final.push_back(s > 0 && (problem.stages < 0 || stages == problem.stages));
  }
  for (size_t c = 0; c < limit.size(); ++c) {
    int most = problem.devices[c].host ? 1 : problem.max_replicas;
    for (int r = 1; r <= std::min(most, limit[c]); ++r) {
      AddOption({static_cast<int>(c), r});
      for (int s = 0; s < states; ++s) {
        if (s / stride[c] % (limit[c] + 1) + r > limit[c]) continue;
        if (count_stages && s / stage_stride == problem.stages) continue;
        steps.back().push_back({s, s + r * stride[c] + (count_stages ? stage_stride : 0), used[s]});
      }
    }
  }
}

// The slowest pair link among the devices at [begin, end) of the sequence with those at [from, to).
static double SlowestLink(const PartitionProblem& problem,
                          const std::vector<std::pair<int, int>>& sequence, int begin, int end,
                          int from, int to) {
  double link = kInfinity;
  int size = static_cast<int>(sequence.size());
  for (int a = std::max(begin, 0); a < std::min(end, size); ++a)
    for (int b = std::max(from, 0); b < std::min(to, size); ++b) {
      int one = sequence[a].second, other = sequence[b].second;
      // Links join devices; CPUs have numbers of their own.
      const bool host =
          problem.devices[sequence[a].first].host || problem.devices[sequence[b].first].host;
      if (one != other && !host)
        link = std::min({link, problem.pair_links[one][other], problem.pair_links[other][one]});
    }
  return link < kInfinity ? link : 1;
}

Resources::Resources(const PartitionProblem& problem,
                     const std::vector<std::pair<int, int>>& sequence) {
  devices = static_cast<int>(sequence.size());
  bool count_stages = problem.stages >= 0 && problem.max_replicas > 1;
  int layers = count_stages ? problem.stages + 1 : 1;
  states = (devices + 1) * layers;
  for (int s = 0; s < states; ++s) {
    int count = s % (devices + 1), layer = s / (devices + 1);
    used.push_back(count);
    double in_use = 0, left = 0;
    for (int d = 0; d < devices; ++d)
      (d < devices - count ? left : in_use) += SpeedOf(problem.devices[sequence[d].first]);
    speed.push_back(in_use);
    speed_left.push_back(left);
    int stages = count_stages ? layer : count;
    final.push_back(count > 0 && (problem.stages < 0 || stages == problem.stages));
  }
  for (int first = 0; first < devices; ++first)
    for (int r = 1; r <= problem.max_replicas && first + r <= devices; ++r) {
      int kind = sequence[first].first, end = first + r;
      if (sequence[end - 1].first != kind) break;
      if (r > 1 && problem.devices[kind].host) break;
      AddOption({kind, r, first, SlowestLink(problem, sequence, first - 1, first, first, end),
                 SlowestLink(problem, sequence, end, end + 1, first, end),
                 SlowestLink(problem, sequence, first, end, first, end)});
      int after = devices - end;
      for (int layer = 0; layer < std::max(layers - 1, 1); ++layer)
        steps.back().push_back({after + layer * (devices + 1),
                                after + r + (layers > 1 ? layer + 1 : 0) * (devices + 1), after});
    }
}

}  // namespace pipewright
