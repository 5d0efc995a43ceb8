#include "plan/search/stages.h"

#include <algorithm>
#include <iterator>

#include "base/error.h"
#include "base/text.h"
#include "plan/simulate/memory.h"

namespace pipewright {

namespace {

double Work(const StageCosts& c) { return c.F + c.I + c.W; }

// Returns cuts into at most `parts` parts, none above `limit`; empty if that needs more parts.
std::vector<size_t> Cut(const std::vector<StageCosts>& list, size_t parts, double limit) {
  std::vector<size_t> ends;
  double sum = 0;
  for (size_t i = 0; i < list.size(); ++i) {
    // Each remaining part needs an entry.
    bool must = list.size() - i == parts - ends.size() - 1 && i > (ends.empty() ? 0 : ends.back());
    if (sum > 0 && (sum + Work(list[i]) > limit || must)) {
      ends.push_back(i);
      sum = 0;
    }
    if (Work(list[i]) > limit) return {};
    sum += Work(list[i]);
  }
  ends.push_back(list.size());
  return ends.size() == parts ? ends : std::vector<size_t>{};
}

}  // namespace

// Merges adjacent entries. Values passed from one entry to the next are held once, by the entry
// that made them.
static StageCosts Merged(const std::vector<StageCosts>& fine, size_t begin, size_t end) {
  StageCosts sum;
  sum.activation = 0;
  bool recompute = true, forward_only = true;
  double again = 0, made = 0;
  for (size_t i = begin; i < end; ++i) {
    const StageCosts& c = fine[i];
    const StageMemory own = StageMemoryOf(c, false);
    sum.F += c.F, sum.I += c.I, sum.W += c.W, sum.B += c.B, sum.step += c.step;
    sum.spread.F += c.spread.F, sum.spread.I += c.spread.I;
    sum.spread.W += c.spread.W, sum.spread.B += c.spread.B;
    const double before = sum.activation - (i == begin ? 0 : c.received);
    sum.peak.F = std::max(sum.peak.F, before + own.forward);
    sum.peak.B = std::max(sum.peak.B, before + own.backward);
    sum.peak.first_B = std::max(sum.peak.first_B, before + own.first_backward);
    double later = 0;
    for (size_t j = i + 1; j < end; ++j) later += fine[j].kept_for_W;
    sum.peak.I = std::max(sum.peak.I, before + own.whole + later);
    sum.peak.W = std::max(sum.peak.W, sum.kept_for_W + own.weight);
    sum.peak.first_W = std::max(sum.peak.first_W, sum.kept_for_W + own.first_weight);
    sum.peak.step = std::max(sum.peak.step, c.peak.step);
    // A stage holds the outputs of its earlier parts; the last of them counts as this part's input.
    sum.peak.forward_only = std::max(sum.peak.forward_only, made + c.peak.forward_only);
    forward_only &= c.peak.forward_only > 0;
    if (i > begin) made += fine[i - 1].output;
    sum.activation = before + c.activation;
    sum.kept_for_W += c.kept_for_W, sum.weights += c.weights, sum.gradients += c.gradients;
    sum.output = c.output;
    recompute &= c.recompute >= 0;
    again += c.recompute;
  }
  sum.received = fine[begin].received;
  if (!forward_only) sum.peak.forward_only = 0;
  // The other parts are recomputed from the checkpoint of the first.
  if (recompute) sum.recompute = again, sum.checkpoint = fine[begin].checkpoint;
  sum.recompute_peak.I = sum.peak.I + sum.checkpoint;
  sum.recompute_peak.B = sum.peak.B + sum.checkpoint;
  sum.recompute_peak.first_B = sum.peak.first_B + sum.checkpoint;
  return sum;
}

Costs MergeStages(const Costs& profile, int stages) {
  const std::vector<StageCosts>& fine = profile.stages;
  size_t parts = static_cast<size_t>(stages);
  if (stages < 1 || fine.size() < parts)
    throw Error(profile.source + ": stages",
                Counted(static_cast<int64_t>(fine.size()), "entry") + " cannot make " +
                    Counted(stages, "stage"),
                "give costs of smaller pieces, at least one entry per stage, or ask for fewer "
                "stages");
  if (!profile.stage_on_rank.empty())
    throw Error(profile.source, "a finer profile cannot differ from rank to rank");
  // The least limit that works is the sum of some run of entries: bisect down to rounding.
  double low = 0, high = 0;
  for (const StageCosts& c : fine) low = std::max(low, Work(c)), high += Work(c);
  std::vector<size_t> ends = Cut(fine, parts, high);
  for (int i = 0; i < 60; ++i) {
    double middle = (low + high) / 2;
    std::vector<size_t> found = Cut(fine, parts, middle * (1 + 1e-12));
    if (found.empty()) {
      low = middle;
    } else {
      high = middle;
      ends = std::move(found);
    }
  }
  if (ends.empty()) throw Error(profile.source, "the entries cannot be cut into so many stages");
  Costs costs;
  costs.source = profile.source;
  costs.link = profile.link, costs.links = profile.links, costs.disk = profile.disk;
  std::vector<int> stage_of;
  size_t begin = 0;
  for (size_t end : ends) {
    stage_of.resize(end, static_cast<int>(costs.stages.size()));
    costs.stages.push_back(Merged(fine, begin, end));
    begin = end;
  }
  for (const auto& [ends_of, edge] : profile.edges) {
    const int from = stage_of[ends_of.first], to = stage_of[ends_of.second];
    if (from == to) continue;
    costs.edges[{from, to}].bytes += edge.bytes;
    costs.edges[{from, to}].back += edge.back;
  }
  return costs;
}

ZbAutoResult ZbAutoStages(const Costs& profile, int ranks, int microbatches,
                          const ZbAutoOptions& options, Costs& costs) {
  int most = static_cast<int>(profile.stages.size());
  if (most < ranks)
    throw Error("--stages auto",
                Counted(most, "entry") + " in " + profile.source + " for " + Counted(ranks, "rank"),
                "give costs of smaller pieces, at least one entry per rank, or use fewer ranks");
  ZbAutoResult best;
  std::string reason;
  const int choices[] = {1, 2, 3, 4, 6, 8};
  auto fits = [&](int each) { return each * ranks <= most; };
  ZbAutoOptions shared = options;  // all searches together take little longer than one
  shared.effort = options.effort * 1.5 /
                  static_cast<double>(std::count_if(std::begin(choices), std::end(choices), fits));
  shared.effort = std::min(shared.effort, options.effort);
  for (int each : choices) {
    if (!fits(each)) break;
    Costs merged = MergeStages(profile, each * ranks);
    try {
      ZbAutoResult found = ZbAuto(merged, ranks, each * ranks, microbatches, shared);
      if (!best.plan.ranks.empty() && found.span >= best.span) continue;
      best = std::move(found);
      costs = std::move(merged);
    } catch (const Error& error) {  // it does not fit in memory
      reason = error.what();
    }
  }
  if (best.plan.ranks.empty()) throw Error(reason);
  return best;
}

}  // namespace pipewright
