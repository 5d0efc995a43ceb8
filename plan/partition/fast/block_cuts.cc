#include "plan/partition/fast/block_cuts.h"

#include <algorithm>

namespace pipewright {

Chain ChainOf(const UnitGraph& graph, const std::vector<int>& order,
              const std::vector<int>& positions) {
  Chain chain;
  size_t count = positions.size() - 1;
  std::vector<int> block_of(graph.units.size());
  chain.blocks.resize(count);
  for (size_t b = 0; b < count; ++b)
    for (int p = positions[b]; p < positions[b + 1]; ++p) {
      block_of[order[p]] = static_cast<int>(b);
      chain.blocks[b].AddUnit(graph.units[order[p]], 1);
    }
  std::vector<std::pair<int, Chain::Touch>> found;
  std::vector<int> blocks;
  for (const Net& net : graph.nets) {
    blocks.clear();
    for (int unit : net.units) blocks.push_back(block_of[unit]);
    std::sort(blocks.begin(), blocks.end());
    blocks.erase(std::unique(blocks.begin(), blocks.end()), blocks.end());
    if (blocks.size() == 1) chain.blocks[blocks[0]].stash_bytes += net.stash_bytes;
    if (blocks.size() < 2) continue;
    for (size_t i = 0; i < blocks.size(); ++i)
      found.push_back({blocks[i],
                       {net.time, net.transfers, net.bytes, net.stash_bytes,
                        i > 0 ? blocks[i - 1] : -1, i + 1 == blocks.size() ? blocks[0] : -1}});
  }
  chain.begin.assign(count + 1, 0);
  for (const auto& touch : found) ++chain.begin[touch.first + 1];
  for (size_t b = 0; b < count; ++b) chain.begin[b + 1] += chain.begin[b];
  chain.touches.resize(found.size());
  std::vector<size_t> fill(chain.begin.begin(), chain.begin.end() - 1);
  for (const auto& touch : found) chain.touches[fill[touch.first]++] = touch.second;
  return chain;
}

namespace {

// Bounds the position of a cut: the devices after it must be able to do the work after it, and
// those before it the rest, both with the transfers across the cut, at loads under a limit.
struct CutRoom {
  double below;              // all loads are smaller
  std::vector<double> work;  // before each position, in device time
  std::vector<double> cut;   // at each position: the least device time that it costs each side
  const Resources& resources;

  CutRoom(const PartitionProblem& problem, const Chain& chain, const Resources& r, double b)
      : below(b), resources(r) {
    double cut_weight = kInfinity, latency_weight = kInfinity;
    for (const DeviceClass& device : problem.devices) {
      if (device.count == 0 || device.host) continue;
      cut_weight = std::min(cut_weight, device.speed / device.link);
      latency_weight = std::min(latency_weight, device.speed * problem.transfer_latency);
    }
    if (cut_weight == kInfinity) cut_weight = latency_weight = 0;
    size_t n = chain.blocks.size();
    work.assign(n + 1, 0), cut.assign(n + 1, 0);
    for (size_t b = 0; b < n; ++b) {
      work[b + 1] = work[b] + chain.blocks[b].device_time;
      for (size_t t = chain.begin[b]; t < chain.begin[b + 1]; ++t) {
        const Chain::Touch& touch = chain.touches[t];
        double time = touch.time * cut_weight + touch.transfers * latency_weight;
        if (touch.before < 0) cut[b + 1] += time;
        if (touch.first >= 0) cut[b + 1] -= time;
      }
    }
    for (size_t p = 1; p < n; ++p) cut[p] += cut[p - 1];
    cut[n] = 0;
  }

  // Finds the states in which a stage can begin at the position. Returns false if there are none.
  bool Find(int position, std::vector<char>& possible) const {
    double before = work[position], after = work.back() - before, cost = cut[position];
    double slack = 1e-9 * (work.back() + cost);
    bool any = false;
    auto holds = [&](double speed, double needed) {
      double room = speed > 0 ? below * speed : 0;
      return speed == kInfinity || needed + cost <= room + slack;
    };
    for (int s = 0; s < resources.states; ++s) {
      possible[s] = holds(resources.speed[s], after) && holds(resources.speed_left[s], before);
      any = any || possible[s];
    }
    return any;
  }
};

// The dynamic program over a chain of blocks, from its end.
class BlockCuts {
 public:
  BlockCuts(const PartitionProblem& problem, const Chain& chain, const Resources& resources,
            double below);
  SequenceCuts Run(int64_t& steps);

 private:
  struct From {
    int end = -1, state = 0, option = 0;
  };
  // An option with a single step, as for devices in a sequence.
  struct Single {
    int from, to, option;
  };

  void SortOptions();
  void BeginAt(int begin);
  void TrySingles(const StageSums& stage, int begin, int end);
  void TryOthers(const StageSums& stage, int begin, int end);
  void KeepLive(int begin);
  SequenceCuts Cheapest() const;
  void Offer(double value, int begin, int to, const From& origin) {
    double& known = best_[begin * states_ + to];
    if (value >= known) return;
    known = value;
    from_[begin * states_ + to] = origin;
  }

  const PartitionProblem& problem_;
  const Chain& chain_;
  const Resources& resources_;
  const double below_;
  const int n_;
  const size_t states_;
  const bool varies_;
  bool limited_ = false;
  double most_bytes_ = 0;      // the most memory of any device
  std::vector<double> best_;   // [position * states_ + state]
  std::vector<From> from_;     // likewise
  std::vector<double> least_;  // time of each block on its best device
  // The range of states in which a stage may begin at each position; empty if first > last.
  std::vector<int> first_live_, last_live_;
  // Options with a single step, by state, and the others.
  std::vector<Single> singles_;
  std::vector<size_t> others_, first_single_;
  std::vector<int> devices_after_;
  int64_t taken_ = 0;
};

BlockCuts::BlockCuts(const PartitionProblem& problem, const Chain& chain,
                     const Resources& resources, double below)
    : problem_(problem),
      chain_(chain),
      resources_(resources),
      below_(below),
      n_(static_cast<int>(chain.blocks.size())),
      states_(resources.states),
      varies_(MemoryByPlace(problem)),
      best_((n_ + 1) * states_, kInfinity),
      from_((n_ + 1) * states_),
      least_(n_, kInfinity),
      first_live_(n_ + 1, 0),
      last_live_(n_ + 1, -1),
      taken_(n_ * static_cast<int64_t>(states_) / 8) {
  best_[n_ * states_] = 0;
  last_live_[n_] = 0;
  for (const DeviceClass& device : problem.devices)
    if (device.count > 0)
      most_bytes_ =
          std::max(most_bytes_, device.host ? kInfinity : device.memory_bytes * (1 + 1e-12));
  limited_ = most_bytes_ < kInfinity;
  for (int b = 0; b < n_; ++b)
    for (const DeviceClass& device : problem.devices)
      least_[b] = std::min(least_[b], device.host ? chain.blocks[b].host_time
                                                  : chain.blocks[b].device_time / device.speed);
  SortOptions();
}

void BlockCuts::SortOptions() {
  first_single_.assign(states_ + 1, 0);
  devices_after_.assign(resources_.options.size(), 0);
  for (size_t o = 0; o < resources_.options.size(); ++o) {
    if (resources_.steps[o].size() > 1) others_.push_back(o);
    if (resources_.steps[o].size() != 1) continue;
    const Resources::Step& step = resources_.steps[o][0];
    singles_.push_back({step.from, step.to, static_cast<int>(o)});
    devices_after_[o] = step.devices_after;
    ++first_single_[step.from + 1];
  }
  std::stable_sort(singles_.begin(), singles_.end(),
                   [](const Single& a, const Single& b) { return a.from < b.from; });
  for (size_t s = 0; s < states_; ++s) first_single_[s + 1] += first_single_[s];
}

// Tries all stages that begin at the position.
void BlockCuts::BeginAt(int begin) {
  const double limit = below_ * problem_.max_replicas;
  double work = 0;
  StageSums stage;
  for (int end = begin; end < n_ && work < limit;) {
    const StageSums& block = chain_.blocks[end];
    work += least_[end];
    stage.Add(block);
    if (stage.static_bytes + stage.stash_bytes > most_bytes_) break;
    taken_ += 1 + static_cast<int64_t>(chain_.begin[end + 1] - chain_.begin[end]) / 2;
    for (size_t t = chain_.begin[end]; t < chain_.begin[end + 1]; ++t) {
      const Chain::Touch& touch = chain_.touches[t];
      if (touch.before < begin) stage.AddCut(touch, 1), stage.stash_bytes += touch.stash_bytes;
      if (touch.before < begin && touch.before >= 0) stage.entering_time += touch.time;
      if (touch.first >= begin) stage.AddCut(touch, -1);
    }
    ++end;
    if (first_live_[end] > last_live_[end]) continue;
    TrySingles(stage, begin, end);
    TryOthers(stage, begin, end);
  }
}

void BlockCuts::TrySingles(const StageSums& stage, int begin, int end) {
  const double* here = &best_[begin * states_];
  const double* after = &best_[end * states_];
  const size_t last = first_single_[last_live_[end] + 1];
  for (size_t i = first_single_[first_live_[end]]; i < last; ++i) {
    auto [after_state, state, o] = singles_[i];
    ++taken_;
    if (after[after_state] >= here[state]) continue;
    double load = stage.Load(problem_, resources_.options[o], devices_after_[o]);
    Offer(std::max(after[after_state], load), begin, state, {end, after_state, o});
  }
}

void BlockCuts::TryOthers(const StageSums& stage, int begin, int end) {
  const double* here = &best_[begin * states_];
  const double* after = &best_[end * states_];
  const int first = first_live_[end], last = last_live_[end];
  for (size_t o : others_) {
    const std::vector<Resources::Step>& steps = resources_.steps[o];
    if (steps.front().from > last || steps.back().from < first) continue;
    double load = stage.Load(problem_, resources_.options[o], 0);
    if (load >= below_) continue;
    auto step =  // ascending by `from`
        std::lower_bound(steps.begin(), steps.end(), first,
                         [](const Resources::Step& a, int state) { return a.from < state; });
    taken_ += (last - first) / (varies_ ? 1 : 8) + (limited_ ? 4 : 0);
    for (; step != steps.end() && step->from <= last; ++step) {
      if (after[step->from] >= here[step->to]) continue;
      if (varies_) load = stage.Load(problem_, resources_.options[o], step->devices_after);
      Offer(std::max(after[step->from], load), begin, step->to,
            {end, step->from, static_cast<int>(o)});
    }
  }
}

// Keeps only states in which the stages from the position on are under the limit.
void BlockCuts::KeepLive(int begin) {
  double* here = &best_[begin * states_];
  for (size_t s = states_; s-- > 0;)
    if (here[s] < 0 || here[s] >= below_) {
      here[s] = kInfinity;
    } else {
      first_live_[begin] = static_cast<int>(s);
      if (last_live_[begin] < 0) last_live_[begin] = static_cast<int>(s);
    }
}

SequenceCuts BlockCuts::Cheapest() const {
  SequenceCuts cuts;
  size_t state = 0;
  for (size_t s = 0; s < states_; ++s)
    if (resources_.final[s] && best_[s] < cuts.objective) {
      cuts.objective = best_[s];
      state = s;
    }
  if (cuts.objective == kInfinity) return cuts;
  for (int begin = 0; begin < n_;) {
    const From& origin = from_[begin * states_ + state];
    cuts.stages.push_back({begin, origin.end, resources_.options[origin.option]});
    begin = origin.end;
    state = origin.state;
  }
  return cuts;
}

SequenceCuts BlockCuts::Run(int64_t& steps) {
  CutRoom room(problem_, chain_, resources_, below_);
  std::vector<char> possible(states_);
  for (int begin = n_ - 1; begin >= 0; --begin) {
    if (!room.Find(begin, possible)) continue;
    // Only smaller values are accepted.
    for (size_t s = 0; s < states_; ++s) best_[begin * states_ + s] = possible[s] ? below_ : -1;
    BeginAt(begin);
    KeepLive(begin);
  }
  steps -= taken_;
  return Cheapest();
}

}  // namespace

SequenceCuts CutBlocks(const PartitionProblem& problem, const Chain& chain,
                       const Resources& resources, double below, int64_t& steps) {
  return BlockCuts(problem, chain, resources, below).Run(steps);
}

}  // namespace pipewright
