#include <algorithm>
#include <climits>
#include <numeric>

#include "base/error.h"
#include "base/text.h"
#include "plan/partition/problem/stage_load.h"

namespace pipewright {

void Resources::AddOption(const StageOption& option) {
  options.push_back(option);
  steps.emplace_back();
}

static double SpeedOf(const DeviceClass& device) { return device.host ? kInfinity : device.speed; }

// Returns the most devices of `left` that can be used after `stages` stages.
static int DevicesLeft(const PartitionProblem& problem, int left, int stages) {
  if (problem.stages < 0) return left;
  return std::min(left, (problem.stages - stages) * problem.max_replicas);
}

double Resources::MostLeft(const PartitionProblem& problem, int state,
                           const std::vector<double>& of_class) const {
  size_t classes = problem.devices.size();
  std::vector<size_t> order(classes);
  std::iota(order.begin(), order.end(), size_t{0});
  std::sort(order.begin(), order.end(), [&](size_t a, size_t b) {
    return of_class[a] != of_class[b] ? of_class[a] > of_class[b] : a < b;
  });
  double sum = 0;
  int most = most_left[state];
  for (size_t c : order) {
    int count = std::min(most, problem.devices[c].count - in_use[state * classes + c]);
    if (count <= 0) continue;
    sum += count * of_class[c];
    most -= count;
  }
  return sum;
}

static bool CountStages(const PartitionProblem& problem) {
  return problem.stages >= 0 && problem.max_replicas > 1;
}

int DeviceStates(const PartitionProblem& problem) {
  double states = CountStages(problem) ? problem.stages + 1.0 : 1;
  for (const DeviceClass& device : problem.devices) states *= device.count + 1.0;
  return states < 2e9 ? static_cast<int>(states) : INT_MAX;
}

Resources::Resources(const PartitionProblem& problem) {
  std::vector<int> stride, limit;
  int all_states = DeviceStates(problem);
  for (const DeviceClass& device : problem.devices) devices += device.count;
  if (all_states > kMostDeviceStates || devices > 10000)
    throw Error("partition",
                Counted(devices, "device") + " in up to " +
                    Counted(problem.max_replicas, "replica") +
                    " a stage can be assigned in too many ways for the search",
                "give fewer --devices or --replicas, or merge devices that always work together "
                "into faster ones (--speeds)");
  for (const DeviceClass& device : problem.devices) {
    stride.push_back(states);
    limit.push_back(device.count);
    states *= device.count + 1;
  }
  const bool count_stages = CountStages(problem);
  int stage_stride = states;
  states = all_states;
  std::vector<double> speeds;
  for (const DeviceClass& device : problem.devices) speeds.push_back(SpeedOf(device));
  for (int s = 0; s < states; ++s) {
    int total = 0;
    double together = 0;
    for (size_t c = 0; c < limit.size(); ++c) {
      int digit = s / stride[c] % (limit[c] + 1);
      in_use.push_back(digit);
      total += digit;
      if (digit > 0) together += digit * speeds[c];
    }
    int stages = count_stages ? s / stage_stride : total;
    used.push_back(total);
    most_left.push_back(DevicesLeft(problem, devices - total, stages));
    speed.push_back(together);
    speed_left.push_back(MostLeft(problem, s, speeds));
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

// Returns the slowest link between devices [begin, end) and devices [from, to) of the sequence.
static double SlowestLink(const PartitionProblem& problem, const DeviceSequence& sequence,
                          int begin, int end, int from, int to) {
  double link = kInfinity;
  int size = static_cast<int>(sequence.size());
  for (int a = std::max(begin, 0); a < std::min(end, size); ++a)
    for (int b = std::max(from, 0); b < std::min(to, size); ++b) {
      int one = sequence[a].second, other = sequence[b].second;
      // pair_links has no CPUs, which are numbered separately.
      const bool host =
          problem.devices[sequence[a].first].host || problem.devices[sequence[b].first].host;
      if (one != other && !host)
        link = std::min({link, problem.pair_links[one][other], problem.pair_links[other][one]});
    }
  return link < kInfinity ? link : 1;
}

Resources::Resources(const PartitionProblem& problem, const DeviceSequence& sequence) {
  devices = static_cast<int>(sequence.size());
  const bool count_stages = CountStages(problem);
  const size_t classes = problem.devices.size();
  int layers = count_stages ? problem.stages + 1 : 1;
  states = (devices + 1) * layers;
  for (int s = 0; s < states; ++s) {
    int count = s % (devices + 1), layer = s / (devices + 1);
    used.push_back(count);
    int stages = count_stages ? layer : count;
    most_left.push_back(DevicesLeft(problem, devices - count, stages));
    double together = 0, left = 0;
    in_use.resize(in_use.size() + classes, 0);
    for (int d = 0; d < devices; ++d) {
      double one = SpeedOf(problem.devices[sequence[d].first]);
      if (d >= devices - count) ++in_use[s * classes + sequence[d].first];
      if (d >= devices - count)
        together += one;
      else if (d >= devices - count - most_left[s])
        left += one;
    }
    speed.push_back(together);
    speed_left.push_back(left);
    final.push_back(count > 0 && (problem.stages < 0 || stages == problem.stages));
  }
  for (int first = 0; first < devices; ++first)
    for (int r = 1; r <= problem.max_replicas && first + r <= devices; ++r) {
      int kind = sequence[first].first, end = first + r;
      if (sequence[end - 1].first != kind) break;
      if (r > 1 && problem.devices[kind].host) break;
      if (problem.pair_links.empty())
        AddOption({kind, r});
      else
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
