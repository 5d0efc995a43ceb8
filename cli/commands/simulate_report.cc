#include "cli/commands/simulate_report.h"

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <iostream>

#include "plan/plan_text.h"

namespace pipewright {

// Writes whole numbers without a decimal point, so that integer costs give integer figures.
static Json Value(double x) {
  if (std::abs(x) < 9e15 && x == std::floor(x)) return static_cast<int64_t>(x);
  return x;
}

// Formats for the user: fractions have nine digits (--json has all).
static std::string Show(double x) {
  Json value = Value(x);
  if (value.is_number_integer()) return value.dump();
  char out[32];
  std::snprintf(out, sizeof out, "%.9g", x);
  return out;
}

static std::string Percent(double rate) {
  char out[32];
  std::snprintf(out, sizeof out, "%.2f %%", rate * 100);
  return out;
}

Json FiguresJson(const Plan& plan, const ActionTrace& trace, const Figures& figures,
                 const std::optional<LowerBound>& bound) {
  Json ranks = Json::array(), path = Json::array();
  for (size_t r = 0; r < figures.ranks.size(); ++r) {
    const RankFigures& f = figures.ranks[r];
    ranks.push_back({{"rank", r},
                     {"first", Value(f.first)},
                     {"last", Value(f.last)},
                     {"busy", Value(f.busy)},
                     {"idle", Value(f.idle)},
                     {"span", Value(f.span)},
                     {"peak_activations", f.peak_activations},
                     {"held_bytes", Value(f.held_bytes)},
                     {"peak_bytes", Value(f.peak_bytes)},
                     {"bubble_rate", f.bubble_rate(figures.makespan)},
                     {"span_bubble_rate", f.span_bubble_rate()}});
  }
  Json links = Json::array();
  for (const LinkTraffic& link : trace.links)
    links.push_back({{"from", link.from},
                     {"to", link.to},
                     {"messages", link.messages},
                     {"bytes", Value(link.bytes)}});
  for (const EventId& id : CriticalPath(trace)) {
    const TimedAction& e = trace.ranks[id.rank][id.event];
    path.push_back({{"rank", id.rank},
                    {"action", ToText(plan.ranks[id.rank][e.action])},
                    {"step", e.step},
                    {"start", Value(e.start)},
                    {"end", Value(e.end)}});
  }
  return {{"makespan", Value(figures.makespan)},
          {"span", Value(figures.span)},
          {"ranks", ranks},
          {"lower_bound",
           {{"makespan", bound ? Value(bound->makespan) : Json()},
            {"span", bound ? Value(bound->span) : Json()}}},
          {"links", links},
          {"critical_path", path}};
}

void PrintFigures(const Plan& plan, const ActionTrace& trace, const Figures& figures,
                  const std::optional<LowerBound>& bound) {
  auto line = [&](const char* name, double found, double LowerBound::*least) {
    std::cout << name << Show(found);
    if (bound) std::cout << "  (lower bound " << Show(*bound.*least) << ")";
    std::cout << "\n";
  };
  line("makespan  ", figures.makespan, &LowerBound::makespan);
  line("span      ", figures.span, &LowerBound::span);
  std::printf("%5s %12s %12s %12s %12s %9s %12s %9s %11s %12s\n", "rank", "first", "last", "busy",
              "idle", "bubble", "span", "bubble", "activations", "bytes");
  for (size_t r = 0; r < figures.ranks.size(); ++r) {
    const RankFigures& f = figures.ranks[r];
    std::printf("%5zu %12s %12s %12s %12s %9s %12s %9s %11lld %12s\n", r, Show(f.first).c_str(),
                Show(f.last).c_str(), Show(f.busy).c_str(), Show(f.idle).c_str(),
                Percent(f.bubble_rate(figures.makespan)).c_str(), Show(f.span).c_str(),
                Percent(f.span_bubble_rate()).c_str(), static_cast<long long>(f.peak_activations),
                Show(f.peak_bytes).c_str());
  }
  bool bytes = std::any_of(trace.links.begin(), trace.links.end(),
                           [](const LinkTraffic& link) { return link.bytes > 0; });
  if (bytes) std::printf("%12s %12s %12s\n", "link", "messages", "bytes");
  for (size_t i = 0; bytes && i < trace.links.size(); ++i) {
    const LinkTraffic& link = trace.links[i];
    std::string ends = std::to_string(link.from) + " > " + std::to_string(link.to);
    std::printf("%12s %12lld %12s\n", ends.c_str(), static_cast<long long>(link.messages),
                Show(link.bytes).c_str());
  }
  // Starts a line for each change of rank, and shows at most 60 actions, so that the path of a long
  // plan stays readable.
  std::string path;
  int rank = -1;
  size_t shown = 0, skipped = 0;
  for (const EventId& id : CriticalPath(trace)) {
    if (shown >= 60) {
      ++skipped;
      continue;
    }
    if (id.rank != rank)
      path += (path.empty() ? "" : "\n ") + std::string(" rank ") + std::to_string(id.rank) + ":";
    rank = id.rank;
    path += " " + ToText(plan.ranks[id.rank][trace.ranks[id.rank][id.event].action]);
    ++shown;
  }
  std::cout << "critical path\n " << path;
  if (skipped) std::cout << "\n  and " << skipped << " more (--json has them all)";
  std::cout << "\n";
}

static Json Ratio(double predicted, double measured) {
  if (measured <= 0) return nullptr;
  return predicted / measured;
}

static Json KindsJson(const std::vector<ComparedKind>& kinds) {
  Json list = Json::array();
  for (const ComparedKind& k : kinds) {
    Json entry;
    if (k.stage >= 0) entry["stage"] = k.stage;
    entry["kind"] = KindName(k.kind);
    entry["predicted_count"] = k.predicted_count;
    entry["measured_count"] = k.measured_count;
    entry["predicted"] = Value(k.predicted);
    entry["measured"] = Value(k.measured);
    entry["ratio"] = Ratio(k.predicted, k.measured);
    list.push_back(entry);
  }
  return list;
}

Json ComparisonJson(const Comparison& c) {
  Json ranks = Json::array();
  for (size_t r = 0; r < c.ranks.size(); ++r)
    ranks.push_back({{"rank", r},
                     {"predicted_busy", Value(c.ranks[r].predicted_busy)},
                     {"measured_busy", Value(c.ranks[r].measured_busy)},
                     {"predicted_idle", Value(c.ranks[r].predicted_idle)},
                     {"measured_idle", Value(c.ranks[r].measured_idle)}});
  return {{"step",
           {{"predicted", Value(c.predicted_step)},
            {"measured", Value(c.measured_step)},
            {"ratio", Ratio(c.predicted_step, c.measured_step)},
            {"predicted_steps", c.predicted_steps},
            {"measured_steps", c.measured_steps}}},
          {"kinds", KindsJson(c.kinds)},
          {"stages", KindsJson(c.stages)},
          {"ranks", ranks}};
}

void PrintComparison(const Comparison& c) {
  auto number = [](double x) {
    char out[32];
    std::snprintf(out, sizeof out, "%.6g", x);
    return std::string(out);
  };
  auto row = [&](const std::string& name, double predicted, double measured) {
    std::string ratio = measured > 0 ? number(predicted / measured) : "-";
    std::printf("%16s %12s %12s %12s\n", name.c_str(), number(predicted).c_str(),
                number(measured).c_str(), ratio.c_str());
  };
  std::printf("\n%16s %12s %12s %12s\n", "", "predicted", "measured", "ratio");
  row("step", c.predicted_step, c.measured_step);
  for (const ComparedKind& k : c.kinds) row(KindName(k.kind), k.predicted, k.measured);
  for (const ComparedKind& k : c.stages)
    row("stage " + std::to_string(k.stage) + " " + KindName(k.kind), k.predicted, k.measured);
  for (size_t r = 0; r < c.ranks.size(); ++r) {
    row("rank " + std::to_string(r) + " busy", c.ranks[r].predicted_busy, c.ranks[r].measured_busy);
    row("rank " + std::to_string(r) + " idle", c.ranks[r].predicted_idle, c.ranks[r].measured_idle);
  }
}

}  // namespace pipewright
