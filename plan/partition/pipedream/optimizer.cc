#include "plan/partition/pipedream/optimizer.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "base/error.h"
#include "plan/partition/pipedream/states.h"

namespace pipewright {

static const double kNever = std::numeric_limits<double>::infinity();
// Differences below this are rounding: upstream's sums have no fixed order either.
static const double kTie = 1 - 1e-12;

namespace {

struct Cell {
  int split = -1;    // last state of the stages before the last one; -1: a single stage
  int left = 0;      // machines of the stages before the last one, minus one
  int replicas = 0;  // the last stage's
};

// One level of the hierarchy. Rows are the states from which a span starts, minus one entry for the
// beginning: row i spans state i to state j.
struct Level {
  int machines, rows, states;
  std::vector<double> time;  // [row][machines - 1][state], never: impossible
  std::vector<Cell> cells;

  size_t At(int row, int m, int state) const {
    return (static_cast<size_t>(row) * machines + m) * states + state;
  }
};

struct Search {
  const PipeDreamStates& states;
  const PipeDreamOptions& options;
  int count;                             // states
  std::vector<std::vector<int>> before;  // states that are strict subsets, ascending

  double Sum(const std::vector<double>& sums, int row, int state) const {
    return row > 0 ? sums[state] - sums[row - 1] : sums[state];
  }
};

}  // namespace

// Returns the cost of states (k, j] as the last of several stages on m replicas, without transfers.
static double LastStage(const Search& s, double compute, double bandwidth, int k, int j, int m) {
  double parameters = s.Sum(s.states.parameter_bytes, k + 1, j);
  return (compute + 4.0 * (m - 1) * parameters / (bandwidth * m)) / m;
}

static double Transfers(const Search& s, double bandwidth, int k, int j, int m) {
  if (!s.options.activation_compression_ratio) return 0;
  double in = 2.0 * s.states.output_bytes[k] / (bandwidth * m);
  double out = j < s.count - 1 ? 2.0 * s.states.output_bytes[j] / (bandwidth * m) : 0;
  return std::max(in, out) / *s.options.activation_compression_ratio;
}

// Solves one level. `compute` is the time of a span on one element of the level below:
// [row * states + state].
static Level SolveLevel(const Search& s, const std::vector<double>& compute, int machines,
                        double bandwidth, int machines_below, bool final_level) {
  const PipeDreamOptions& o = s.options;
  int n = s.count;
  Level level{machines, final_level ? 1 : n + 1, n, {}, {}};
  level.time.assign(static_cast<size_t>(level.rows) * machines * n, kNever);
  level.cells.assign(level.time.size(), Cell{});
  auto stash = [&](int row, int j, int m, int used) {
    return (s.Sum(s.states.activation_bytes, row, j) + s.Sum(s.states.parameter_bytes, row, j)) *
           std::ceil(double(machines - used) / m);
  };
  for (int i = 0; i < level.rows; ++i)
    for (int m = 0; m < (o.straight_pipeline ? 1 : machines); ++m)
      for (int j = i; j < n; ++j) {
        double time = compute[static_cast<size_t>(i) * n + j];
        if (time == kNever) continue;
        if (o.use_memory_constraint && stash(i, j, m + 1, m + 1) > o.memory_bytes) continue;
        double allreduce = 4.0 * m * s.Sum(s.states.parameter_bytes, i, j) / (bandwidth * (m + 1)) /
                           machines_below;
        size_t at = level.At(i, m, j);
        level.time[at] = (time + allreduce) / (m + 1);
        level.cells[at] = {-1, 0, m + 1};
      }
  int most = o.straight_pipeline ? 1 : machines - 1;
  // The cost of a last stage (k, j] on m' replicas, for all k before j: the same for every row.
  std::vector<double> cost(static_cast<size_t>(std::max(most, 1)) * n);
  // Columns are the outermost loop, so that `cost` is built once; all values used are of smaller
  // columns.
  for (int j = 1; j < n; ++j) {
    for (int m1 = 1; m1 <= most; ++m1)
      for (int k : s.before[j]) {
        double time = compute[static_cast<size_t>(k + 1) * n + j];
        cost[static_cast<size_t>(m1 - 1) * n + k] =
            time == kNever ? kNever
                           : std::max(LastStage(s, time, bandwidth, k, j, m1),
                                      Transfers(s, bandwidth, k, j, m1));
      }
    for (int i = 0; i < std::min(level.rows, j); ++i)
      for (int m = 1; m < machines; ++m) {
        size_t at = level.At(i, m, j);
        double best = level.time[at];
        Cell cell = level.cells[at];
        if (o.use_fewer_machines && level.time[at - n] < best) {
          best = level.time[at - n];
          cell = level.cells[at - n];
        }
        for (int m1 = 1; m1 <= std::min(most, m); ++m1) {
          const double* first = &level.time[level.At(i, m - m1, 0)];
          const double* last = &cost[static_cast<size_t>(m1 - 1) * n];
          for (int k : s.before[j]) {
            double time = std::max(first[k], last[k]);
            if (k < i || time == kNever) continue;
            // Ties prefer a single stage, then the later cut, then fewer replicas.
            bool tie = time <= best / kTie && cell.split >= 0 && k > cell.split;
            if (time >= best * kTie && !tie) continue;
            if (o.use_memory_constraint && stash(k + 1, j, m1, m + 1) > o.memory_bytes) continue;
            best = std::min(best, time);
            cell = {k, m - m1, m1};
          }
        }
        level.time[at] = best;
        level.cells[at] = cell;
      }
  }
  return level;
}

static void CheckOptions(const PipeDreamOptions& o) {
  if (o.machines.empty() || o.machines.size() != o.bandwidths.size())
    throw UsageError("-n",
                     "one number of machines and one bandwidth per level are expected, " +
                         std::to_string(o.machines.size()) + " and " +
                         std::to_string(o.bandwidths.size()) + " were given",
                     "-n 4 2 -b 1e9 1e9");
  for (int machines : o.machines)
    if (machines < 1 || machines > 4096)
      throw UsageError("-n", "1 to 4096 machines per level are expected");
  for (double bandwidth : o.bandwidths)
    if (!(bandwidth > 0)) throw UsageError("-b", "a bandwidth above 0 is expected");
  if (o.activation_compression_ratio && !(*o.activation_compression_ratio > 0))
    throw UsageError("--activation_compression_ratio", "a number above 0 is expected");
}

namespace {

struct Span {
  int first, end;  // states
  int replicas;    // the product over the levels above
};

}  // namespace

// Returns the stages of [span.first, span.end) at one level.
static std::vector<Span> SplitSpan(const Level& level, const Span& span) {
  std::vector<Span> parts;
  int end = span.end - 1, m = level.machines - 1;
  while (true) {
    const Cell& cell = level.cells[level.At(span.first, m, end)];
    int first = cell.split < 0 ? span.first : cell.split + 1;
    parts.insert(parts.begin(), {first, end + 1, span.replicas * cell.replicas});
    if (cell.split < 0) return parts;
    end = cell.split;
    m = cell.left;
  }
}

static void FillStages(const ModelGraph& graph, const Search& s, const std::vector<Span>& spans,
                       PipeDreamResult& result) {
  Bits taken = MakeBits(static_cast<int>(graph.nodes.size()));
  for (const Span& span : spans) {
    PipeDreamStage stage{span.first, span.end, span.replicas, {}, 0, 0, 0, 0};
    ForEach(s.states.nodes[span.end - 1], [&](int node) {
      if (!Has(taken, node)) stage.nodes.push_back(node);
    });
    Unite(taken, s.states.nodes[span.end - 1]);
    double bandwidth = s.options.bandwidths[0];
    double parameters = s.Sum(s.states.parameter_bytes, span.first, span.end - 1);
    stage.compute_s = s.Sum(s.states.compute_s, span.first, span.end - 1);
    stage.memory_bytes = s.Sum(s.states.activation_bytes, span.first, span.end - 1) + parameters;
    int r = span.replicas;
    stage.allreduce_s = 4.0 * (r - 1) * parameters / (bandwidth * r);
    if (span.first > 0) stage.transfer_s = Transfers(s, bandwidth, span.first - 1, span.end - 1, r);
    result.stages.push_back(stage);
  }
  // The first stage gets the nodes that no state has: Input nodes, and parts of the graph that are
  // not connected to its first source. An unused __getitem__ stays with its tuple.
  std::vector<char> unused(graph.nodes.size(), 0);
  for (int node : s.states.unused) unused[node] = 1;
  for (int node = 0; node < static_cast<int>(graph.nodes.size()); ++node)
    if (!Has(taken, node) && !unused[node]) result.stages[0].nodes.push_back(node);
  for (int node : s.states.unused) {
    size_t stage = 0;
    for (auto [from, to] : graph.edges)
      for (size_t i = 0; to == node && i < result.stages.size(); ++i)
        if (std::count(result.stages[i].nodes.begin(), result.stages[i].nodes.end(), from))
          stage = std::max(stage, i);
    result.stages[stage].nodes.push_back(node);
  }
  for (PipeDreamStage& stage : result.stages) std::sort(stage.nodes.begin(), stage.nodes.end());
}

PipeDreamResult PipeDreamPartition(const ModelGraph& graph, const PipeDreamOptions& options,
                                   int max_states) {
  CheckOptions(options);
  PipeDreamStates states = EnumeratePipeDreamStates(graph, max_states);
  int n = static_cast<int>(states.nodes.size());
  Search s{states, options, n, std::vector<std::vector<int>>(n)};
  for (int j = 0; j < n; ++j)
    for (int k = 0; k < j; ++k)
      if (IsSubset(states.nodes[k], states.nodes[j])) s.before[j].push_back(k);

  std::vector<double> compute(static_cast<size_t>(n + 1) * n, kNever);
  for (int i = 0; i <= n; ++i)
    for (int j = i; j < n; ++j)
      compute[static_cast<size_t>(i) * n + j] = s.Sum(states.compute_s, i, j);
  std::vector<Level> levels;
  PipeDreamResult result;
  result.states = n;
  result.one_machine_s = result.data_parallel_s = states.compute_s[n - 1];
  int below = 1;
  for (size_t l = 0; l < options.machines.size(); ++l) {
    int machines = options.machines[l];
    double bandwidth = options.bandwidths[l];
    levels.push_back(
        SolveLevel(s, compute, machines, bandwidth, below, l + 1 == options.machines.size()));
    const Level& level = levels.back();
    for (int i = 0; i < level.rows; ++i)
      for (int j = 0; j < n; ++j)
        compute[static_cast<size_t>(i) * n + j] = level.time[level.At(i, machines - 1, j)];
    result.data_parallel_s =
        (result.data_parallel_s +
         4.0 * (machines - 1) * states.parameter_bytes[n - 1] / (bandwidth * machines) / below) /
        machines;
    below = machines;
  }
  result.seconds_per_minibatch = compute[n - 1];
  result.feasible = result.seconds_per_minibatch < kNever;
  if (!result.feasible) return result;
  std::vector<Span> spans = {{0, n, 1}};
  for (size_t l = levels.size(); l-- > 0;) {
    std::vector<Span> finer;
    for (const Span& span : spans)
      for (const Span& part : SplitSpan(levels[l], span)) finer.push_back(part);
    spans = finer;
  }
  FillStages(graph, s, spans, result);
  return result;
}

}  // namespace pipewright
