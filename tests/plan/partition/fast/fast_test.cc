#include "plan/partition/fast/fast.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <ctime>
#include <numeric>
#include <random>
#include <set>

#include "plan/partition/fast/lower_bound.h"
#include "plan/partition/refine/refine.h"
#include "plan/partition/refine/stage_table.h"
#include "plan/partition/solve.h"

namespace pipewright {
namespace {

// Stages of equal work with much traffic inside and little between them: a partition that is known
// to be good, hidden by numbering the nodes at random.
struct Planted {
  PartitionProblem problem;
  double load = 0;  // largest of the planted stages
  PartitionResult stages;
};

Planted Plant(int stages, int per_stage, int width, unsigned seed) {
  std::mt19937 random(seed);
  auto below = [&](int n) { return static_cast<int>(random() % static_cast<unsigned>(n)); };
  auto share = [&] { return below(1000) / 1000.0; };
  int n = stages * per_stage;
  std::vector<double> time(n), out(n);
  std::set<std::pair<int, int>> edges;
  for (int s = 0; s < stages; ++s) {
    int first = s * per_stage;
    double sum = 0;
    for (int i = 0; i < per_stage; ++i) sum += time[first + i] = 0.2 + share();
    for (int i = 0; i < per_stage; ++i) {
      time[first + i] /= sum;
      out[first + i] = 0.05 + 0.4 * share();
      int layer = i / width;
      for (int k = 0; k < 2 && layer > 0; ++k)
        edges.insert({first + (layer - 1) * width + below(width), first + i});
    }
    for (int k = 0; k < 2 && s > 0; ++k) {
      int from = first - per_stage + below(per_stage);
      out[from] = 0.0005;
      edges.insert({from, first + below(per_stage)});
    }
  }
  // A random topological numbering.
  std::vector<int> waiting(n, 0), ready, number(n);
  for (auto [from, to] : edges) ++waiting[to];
  for (int u = 0; u < n; ++u)
    if (!waiting[u]) ready.push_back(u);
  for (int next = 0; next < n; ++next) {
    std::swap(ready[below(static_cast<int>(ready.size()))], ready.back());
    int u = ready.back();
    ready.pop_back();
    number[u] = next;
    for (auto edge = edges.lower_bound({u, 0}); edge != edges.end() && edge->first == u; ++edge)
      if (--waiting[edge->second] == 0) ready.push_back(edge->second);
  }
  Planted planted;
  planted.problem.nodes.resize(n);
  PartitionResult result;
  result.stages.resize(stages);
  for (int u = 0; u < n; ++u) {
    planted.problem.nodes[number[u]].name = std::to_string(number[u]);
    planted.problem.nodes[number[u]].device_time = time[u];
    result.stages[u / per_stage].nodes.push_back(number[u]);
    PartitionValue value{number[u], {}, out[u], 2, 0};
    for (auto edge = edges.lower_bound({u, 0}); edge != edges.end() && edge->first == u; ++edge)
      value.consumers.push_back(number[edge->second]);
    if (!value.consumers.empty()) planted.problem.values.push_back(value);
  }
  planted.problem.devices.resize(1);
  planted.problem.devices[0].count = stages;
  planted.problem.stages = stages;
  for (PartitionStage& stage : result.stages) std::sort(stage.nodes.begin(), stage.nodes.end());
  EvaluatePartition(planted.problem, result);
  EXPECT_EQ(CheckPartition(planted.problem, result), "");
  planted.load = result.objective;
  planted.stages = result;
  return planted;
}

TEST(FastPartition, FindsPlantedStages) {
  struct Case {
    int stages, per_stage, width;
  };
  for (const Case& c :
       {Case{4, 100, 8}, Case{8, 60, 4}, Case{16, 125, 8}, Case{16, 40, 32}})
    for (unsigned seed = 0; seed < 2; ++seed) {
      Planted planted = Plant(c.stages, c.per_stage, c.width, seed);
      PartitionResult result = SolvePartition(planted.problem, {false});
      ASSERT_EQ(CheckPartition(planted.problem, result), "");
      EXPECT_LE(result.objective, planted.load * 1.01)
          << c.stages << " stages, width " << c.width << ", seed " << seed;
      EXPECT_LE(result.lower_bound, planted.load * (1 + 1e-9));
    }
}

// Gives each node activations and weights, so that the planted stages fill `fill` of the memory;
// 1F1B keeps more microbatches in earlier stages.
void FillMemory(Planted& planted, double fill, unsigned seed) {
  std::mt19937 random(seed);
  PartitionProblem& problem = planted.problem;
  for (PartitionNode& node : problem.nodes)
    node.stash_bytes = 1 + static_cast<double>(random() % 1000) / 500;
  for (PartitionValue& value : problem.values) value.bytes = 0.1;
  problem.in_flight = InFlight::k1F1B;
  problem.devices[0].memory_bytes = kInfinity;
  PartitionResult result = planted.stages;
  EvaluatePartition(problem, result);
  double most = 0;
  for (const PartitionStage& stage : result.stages) most = std::max(most, stage.memory_bytes);
  const double limit = 2 * most;
  for (const PartitionStage& stage : result.stages) {
    double left = fill * limit * (1 - 1e-9) - stage.memory_bytes;
    for (int node : stage.nodes)
      problem.nodes[node].static_bytes = left / static_cast<double>(stage.nodes.size());
  }
  problem.devices[0].memory_bytes = limit;
  EvaluatePartition(problem, result);
  EXPECT_EQ(CheckPartition(problem, result), "");
}

// Layers of attention, each beside experts of unequal work.
PartitionProblem Mixture(int layers, int experts, unsigned seed) {
  std::mt19937 random(seed);
  PartitionProblem problem;
  auto add = [&](double work, const std::vector<int>& inputs, double size) {
    const int number = static_cast<int>(problem.nodes.size());
    PartitionNode& node = problem.nodes.emplace_back();
    node.name = std::to_string(number);
    node.device_time = work * (0.8 + static_cast<double>(random() % 1000) / 2500);
    node.static_bytes = work;
    node.stash_bytes = 0.2 * size;
    problem.values.push_back({number, {}, 0.02 * size, 2, size});
    for (int input : inputs) problem.values[input].consumers.push_back(number);
    return number;
  };
  int x = add(0.5, {}, 1);
  for (int layer = 0; layer < layers; ++layer) {
    const int attention = add(1, {add(2, {x}, 1)}, 1);
    x = add(0.05, {x, attention}, 1);
    const int router = add(0.1, {x}, 0.1);
    std::vector<int> inputs = {x, router};
    for (int e = 0; e < experts; ++e)
      inputs.push_back(add(6.0 / experts, {add(6.0 / experts, {x, router}, 2.0 / experts)},
                           1.0 / experts));
    x = add(0.1, inputs, 1);
  }
  std::erase_if(problem.values,
                [](const PartitionValue& value) { return value.consumers.empty(); });
  return problem;
}

TEST(FastPartition, MixturesOfExperts) {
  PartitionProblem problem = Mixture(8, 16, 1);
  UnitGraph graph = BuildUnits(problem, Merge::kNone);
  int64_t ticks = FastTicks(graph);
  EXPECT_FALSE(IsNarrow(graph, FastOptions(), ticks));
  double bytes = 0, held = 0;
  for (const PartitionNode& node : problem.nodes)
    bytes += node.static_bytes, held += node.stash_bytes;
  problem.devices.resize(1);
  for (int devices : {3, 8, 16})
    for (bool full : {false, true}) {
      problem.stages = problem.devices[0].count = devices;
      problem.in_flight = InFlight::k1F1B;
      // 1F1B keeps half as many microbatches as there are devices, on average.
      problem.devices[0].memory_bytes =
          full ? 1.3 * (bytes + held * (devices + 1) / 2) / devices : kInfinity;
      PartitionResult result = SolvePartition(problem, {false});
      ASSERT_TRUE(result.feasible) << devices;
      EXPECT_EQ(CheckPartition(problem, result), "");
      EXPECT_LE(result.objective, result.lower_bound * (full ? 1.2 : 1.04)) << devices;
    }
  problem.devices.clear();
  problem.stages = -1;
  for (int d = 0; d < 12; ++d) {
    DeviceClass device;
    device.speed = 0.6 + 0.1 * (d * 7 % 10);
    device.numbers = {d};
    problem.devices.push_back(device);
  }
  PartitionResult unequal = SolvePartition(problem, {false});
  EXPECT_EQ(CheckPartition(problem, unequal), "");
  EXPECT_LE(unequal.objective, unequal.lower_bound * 1.03);
}

// Layers whose values alternate between cheap and expensive transfers, on devices of different
// speeds: the device order that equal stages suggest is 1.5 % slower.
TEST(FastPartition, FindsTheOrderOfUnequalDevices) {
  std::mt19937 random(1);
  PartitionProblem problem;
  double work = 0, speeds = 0;
  for (int i = 0; i < 120; ++i) {
    PartitionNode& node = problem.nodes.emplace_back();
    node.name = std::to_string(i);
    work += node.device_time = i % 4 == 0 ? 4 : 0.5;
    if (i > 0) problem.values.push_back({i - 1, {i}, i % 4 == 0 ? 0.3 : 1.2, 2, 0});
  }
  for (int d = 0; d < 16; ++d) {
    DeviceClass device;
    speeds += device.speed = 0.6 + static_cast<double>(random() % 1000) / 1000;
    device.numbers = {d};
    problem.devices.push_back(device);
  }
  PartitionResult result = SolvePartition(problem, {false});
  EXPECT_EQ(CheckPartition(problem, result), "");
  EXPECT_LE(result.objective, work / speeds * 1.22);
}

// With time left, the search continues, and finds a better partition. Problems with links per pair
// of devices, which are solved as many subproblems, do not wait for that.
TEST(FastPartition, UsesTheTimeThatIsLeft) {
  PartitionProblem problem = Mixture(6, 12, 2);
  problem.devices.resize(1);
  problem.stages = problem.devices[0].count = 16;
  SolveOptions options;
  options.max_sets = 1000;
  options.effort = 0.02;  // so that there is something left to find
  PartitionResult first = SolvePartition(problem, options);
  ASSERT_FALSE(first.proven);
  options.improve_seconds = 2;
  PartitionResult longer = SolvePartition(problem, options);
  EXPECT_EQ(CheckPartition(problem, longer), "");
  EXPECT_LT(longer.objective, first.objective);
  EXPECT_GE(longer.lower_bound, first.lower_bound);
  problem.pair_links.assign(16, std::vector<double>(16, 1));
  for (int d = 0; d < 8; ++d)
    for (int e = 8; e < 16; ++e) problem.pair_links[d][e] = problem.pair_links[e][d] = 0.1;
  options.improve_seconds = 1e9;
  EXPECT_TRUE(SolvePartition(problem, options).feasible);
}

// One device with unlimited memory does not enlarge that of the others.
TEST(FastPartition, MemoryByPlaceBesideAHost) {
  for (unsigned seed = 0; seed < 2; ++seed) {
    Planted planted = Plant(8, 60, 4, seed);
    FillMemory(planted, 0.98, seed);
    for (PartitionNode& node : planted.problem.nodes) node.host_time = node.device_time;
    planted.problem.devices[0].count = 7;
    DeviceClass& host = planted.problem.devices.emplace_back();
    host.host = true;
    PartitionResult result = SolvePartition(planted.problem, {false});
    ASSERT_TRUE(result.feasible) << "seed " << seed;
    EXPECT_EQ(CheckPartition(planted.problem, result), "");
    EXPECT_LE(result.objective, planted.load * 1.02) << "seed " << seed;
  }
}

// It may find nothing, but it must end, and any result must fit.
TEST(FastPartition, MemoryThatHardlySuffices) {
  for (InFlight kept : {InFlight::kOne, InFlight::k1F1B, InFlight::kGPipe})
    for (unsigned seed = 0; seed < 3; ++seed) {
      Planted planted = Plant(12, 20, 5, seed);
      FillMemory(planted, 1, seed);
      planted.problem.in_flight = kept;
      planted.problem.microbatches = 6;
      PartitionResult result = SolvePartition(planted.problem, {false});
      if (result.feasible) {
        EXPECT_EQ(CheckPartition(planted.problem, result), "");
      }
    }
}

TEST(FastPartition, EqualInputGivesEqualOutput) {
  Planted planted = Plant(4, 30, 6, 1);
  PartitionResult first = SolvePartition(planted.problem, {false});
  PartitionResult second = SolvePartition(planted.problem, {false});
  ASSERT_EQ(first.stages.size(), second.stages.size());
  for (size_t s = 0; s < first.stages.size(); ++s)
    EXPECT_EQ(first.stages[s].nodes, second.stages[s].nodes);
}

// The loads predicted for moving a unit are those after the move, and so are those of ranges.
TEST(StageTable, LooksAgreeWithMoves) {
  for (int kind = 0; kind < 4; ++kind) {
    PartitionProblem problem = Plant(4, 20, 4, 7).problem;
    for (PartitionNode& node : problem.nodes) node.host_time = 3, node.stash_bytes = 10;
    for (PartitionValue& value : problem.values) value.bytes = 5;
    problem.devices[0].count = 2;
    problem.devices.push_back(problem.devices[0]);
    if (kind > 0) problem.transfer_latency = 0.01;
    if (kind > 1) problem.devices[1].link = 0.5, problem.devices[1].speed = 2;
    if (kind > 2) problem.devices[0].memory_bytes = 420, problem.devices[1].host = true;
    UnitGraph graph = BuildUnits(problem, Merge::kNone);
    PartitionState units{{{0, 1}, {1, 1}, {0, 1}, {1, 1}}, {}};
    int count = static_cast<int>(graph.units.size());
    for (int u = 0; u < count; ++u) units.stage_of.push_back(4 * u / count);
    StageTable table(problem, graph, units);
    std::mt19937 random(kind);
    for (int i = 0; i < 2000; ++i) {
      int unit = static_cast<int>(random() % count), from = table.units().stage_of[unit];
      auto [low, high] = table.Range(unit);
      int to = low + static_cast<int>(random() % (high - low + 1));
      if (to == from || table.size(from) == 1) continue;
      auto [left, right] = table.LoadsAfter(unit, to);
      table.Move(unit, to);
      StageTable fresh(problem, graph, table.units());
      EXPECT_EQ(fresh.Range(unit), table.Range(unit));
      for (int s : {from, to}) {
        double load = s == from ? left : right;
        EXPECT_EQ(load == kInfinity, fresh.load(s) == kInfinity) << kind;
        if (load == kInfinity) continue;
        EXPECT_NEAR(load, fresh.load(s), 1e-9) << kind;
        EXPECT_NEAR(table.load(s), fresh.load(s), 1e-9) << kind;
      }
      for (int other : graph.next[unit]) EXPECT_EQ(fresh.Range(other), table.Range(other));
      for (int other : graph.previous[unit]) EXPECT_EQ(fresh.Range(other), table.Range(other));
    }
  }
}

// Devices of unequal speed share the work by their speeds.
TEST(PartitionLowerBound, CountsTheSpeedOfEveryDevice) {
  PartitionProblem problem;
  problem.nodes.resize(30);
  for (PartitionNode& node : problem.nodes) node.device_time = 1;
  problem.devices.resize(2);
  problem.devices[1].speed = 2;
  UnitGraph graph = BuildUnits(problem, Merge::kNone);
  EXPECT_DOUBLE_EQ(PartitionLowerBound(problem, graph), 10);
  problem.stages = 1;
  EXPECT_DOUBLE_EQ(PartitionLowerBound(problem, graph), 15);
}

// Parallel chains, one per device, each device with its own speed. The first one exceeds its share
// slightly, and fits no device once stages must be even. Nothing can be exchanged then, but the
// search must still end.
TEST(FastPartition, ChainsSideBySide) {
  for (int chains : {7, 12}) {
    PartitionProblem problem;
    double speeds = 0;
    for (int t = 0; t < chains; ++t) speeds += 1 / (1 + 0.12 * t);
    for (int t = 0; t < chains; ++t) {
      const double speed = 1 / (1 + 0.12 * t);
      const double work = speed * (t == 0 ? 1.018 : (speeds - 1.018) / (speeds - 1));
      const int first = static_cast<int>(problem.nodes.size());
      for (int i = 0; i < 8; ++i) {
        PartitionNode node;
        node.name = std::to_string(first + i);
        node.device_time = work / 8;
        problem.nodes.push_back(node);
        if (i > 0) problem.values.push_back({first + i - 1, {first + i}, 0.5, 2, 0});
      }
      DeviceClass device;
      device.speed = speed;
      device.numbers = {t};
      problem.devices.push_back(device);
    }
    const std::clock_t start = std::clock();
    PartitionResult result = SolvePartition(problem, {false});
    EXPECT_LE(static_cast<double>(std::clock() - start) / CLOCKS_PER_SEC, 10) << chains;
    EXPECT_EQ(CheckPartition(problem, result), "");
    EXPECT_LE(result.objective, 1.018 * (1 + 1e-9)) << chains;
  }
}

// More devices than there is work for, nodes that take no time, and a CPU.
TEST(FastPartition, WorkThatIsLittleOrNone) {
  Planted planted = Plant(2, 40, 4, 5);
  for (PartitionNode& node : planted.problem.nodes) node.device_time = node.host_time = 0;
  PartitionResult none = SolvePartition(planted.problem, {false});
  EXPECT_TRUE(none.feasible);
  EXPECT_EQ(CheckPartition(planted.problem, none), "");
  DeviceClass cpu;
  cpu.host = true;
  planted = Plant(2, 60, 6, 6);
  planted.problem.stages = -1;
  planted.problem.devices.push_back(cpu);
  for (PartitionNode& node : planted.problem.nodes) node.host_time = 2 * node.device_time;
  PartitionResult beside = SolvePartition(planted.problem, {false});
  EXPECT_EQ(CheckPartition(planted.problem, beside), "");
  EXPECT_LE(beside.objective, planted.load * (1 + 1e-9));
}

}  // namespace
}  // namespace pipewright
