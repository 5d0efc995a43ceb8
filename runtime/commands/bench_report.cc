#include "runtime/commands/bench_report.h"

#include <algorithm>
#include <cstdio>
#include <numeric>

#include "base/files/read_file.h"
#include "base/process/messages.h"
#include "base/text.h"
#include "plan/actions.h"
#include "plan/simulate/trace.h"
#include "runtime/commands/run_trace.h"
#include "runtime/measure/links.h"
#include "runtime/measure/module_times.h"

namespace pipewright {

namespace {

const std::pair<ActionKind, const char*> kKinds[] = {
    {ActionKind::kForward, "F"},    {ActionKind::kBackward, "B"},
    {ActionKind::kInputGrad, "I"},  {ActionKind::kWeightGrad, "W"},
    {ActionKind::kOverlap, "pair"}, {ActionKind::kReduceGrad, "REDUCE_GRAD"},
    {ActionKind::kStep, "STEP"}};

// Returns the median over `steps` of each step's mean: the mean because a step takes as long as all
// of its actions together, the median so that a disturbed step does not count.
double TypicalOf(const std::vector<double>& seconds, size_t steps) {
  const size_t each = steps > 0 ? seconds.size() / steps : 0;
  if (each == 0) return TimingOf(seconds).median;
  std::vector<double> means;
  for (size_t first = 0; first + each <= seconds.size(); first += each)
    means.push_back(std::accumulate(seconds.begin() + static_cast<std::ptrdiff_t>(first),
                                    seconds.begin() + static_cast<std::ptrdiff_t>(first + each),
                                    0.0) /
                    static_cast<double>(each));
  return TimingOf(std::move(means)).median;
}

Json TimingJson(std::vector<double> seconds, size_t steps = 0) {
  const double typical = TypicalOf(seconds, steps);
  const size_t count = seconds.size();
  const double sum = std::accumulate(seconds.begin(), seconds.end(), 0.0);
  Timing t = TimingOf(std::move(seconds));
  return {{"count", count},
          {"mean", count > 0 ? sum / static_cast<double>(count) * 1e6 : 0},
          {"typical", typical * 1e6},
          {"median", t.median * 1e6},
          {"low", t.low * 1e6},
          {"high", t.high * 1e6}};
}

bool IsNoisyTiming(const Json& timing) {
  const double low = timing["low"], high = timing["high"];
  return IsNoisy(timing["median"].get<double>() / 1e6, (high - low) / 1e6);
}

std::string Milliseconds(const Json& microseconds) {
  char text[32];
  std::snprintf(text, sizeof text, "%9.3f", microseconds.get<double>() / 1e3);
  return text;
}

double Mebibytes(const Json& bytes) { return bytes.get<double>() / (1 << 20); }

// Returns the costs of a stage, as in a costs file, from the times of its actions (`timings`, by
// name) and from what it holds.
Json StageCostsJson(const RunPlan& run, int stage, const Json& held, const Json& timings) {
  Json costs = held;
  costs.erase("edges");
  costs.erase("loss");
  auto time = [&](const char* name) {
    return timings.contains(name) ? timings[name]["typical"].get<double>() : 0.0;
  };
  const double forward = time("F");
  // The costs list a recomputed forward apart from the backward that contains it.
  const bool again =
      std::count(run.plan.recompute.begin(), run.plan.recompute.end(), stage) > 0;
  costs["F"] = forward;
  costs["B"] = std::max(0.0, time("B") - (again ? forward : 0));
  costs["I"] = std::max(0.0, time("I") - (again ? forward : 0));
  costs["W"] = time("W");
  costs["step"] = time("STEP");
  if (timings.contains("pair")) costs["overlap"] = time("pair");
  costs["recompute"]["time"] = forward;
  for (const char* name : {"F", "I", "B", "W"})
    if (timings.contains(name))
      costs["spread"][name] =
          timings[name]["high"].get<double>() - timings[name]["low"].get<double>();
  double output = 0;
  for (const Json& edge : held["edges"]) output = std::max(output, edge["bytes"].get<double>());
  costs["output"] = output;
  return costs;
}

// Names the measurements whose spread is wide, with their quartiles.
std::vector<std::string> NoisyTimings(const RunPlan& run, const std::vector<Json>& ranks) {
  std::vector<std::string> noisy;
  for (int stage = 0; stage < run.graph.stages; ++stage) {
    const Json& first = ranks[static_cast<size_t>(run.conf.stage_to_ranks[stage][0])];
    for (const char* list : {"measured", "others"})
      for (const char* name : {"F", "I", "B", "W", "pair"}) {
        const std::string key = std::to_string(stage) + name;
        if (!first[list]["actions"].contains(key)) continue;
        const Json& timing = first[list]["actions"][key];
        if (IsNoisyTiming(timing))
          noisy.push_back(key + Milliseconds(timing["low"]) + " to" +
                          Milliseconds(timing["high"]) + " ms");
      }
  }
  return noisy;
}

// Summarizes the whole run: {"step", "stages", "ranks", "bubble", "in_time"}.
Json Summary(const RunPlan& run, const std::vector<Json>& ranks) {
  Json out;
  std::vector<double> ends;  // end of each step on the last rank to finish it
  for (const Json& rank : ranks) {
    std::vector<double> own = rank["measured"]["step_ends"];
    ends.resize(own.size());
    for (size_t i = 0; i < own.size(); ++i) ends[i] = std::max(ends[i], own[i]);
  }
  std::vector<double> steps;
  const std::vector<size_t> firsts = ranks[0]["measured"]["firsts"];
  for (size_t i = 1; i < ends.size(); ++i)
    if (!std::binary_search(firsts.begin(), firsts.end(), i))
      steps.push_back(ends[i] - ends[i - 1]);
  out["step"] = TimingJson(steps);
  const double step = out["step"]["median"];
  double busy = 0;
  int64_t in_time = 0, late = 0;
  out["ranks"] = Json::array();
  for (const Json& rank : ranks) {
    const Json& m = rank["measured"];
    const double own = m["busy"]["median"];
    busy += own;
    in_time += m["in_time"].get<int64_t>();
    late += m["late"].get<int64_t>();
    out["ranks"].push_back({{"busy", own},
                            {"waited", m["waited"]},
                            {"idle", step > 0 ? std::max(0.0, 1 - own / step) : 0},
                            {"held_bytes", m["held_bytes"]},
                            {"peak_bytes", m["peak_bytes"]},
                            {"forward_only_peak_bytes", m["forward_only_peak_bytes"]}});
  }
  out["bubble"] =
      step > 0 ? std::max(0.0, 1 - busy / (step * static_cast<double>(ranks.size()))) : 0;
  out["overlap"] = in_time + late > 0 ? static_cast<double>(in_time) / (in_time + late) : 1.0;
  out["stages"] = Json::array();
  for (int stage = 0; stage < run.graph.stages; ++stage) {
    const Json& first = ranks[run.conf.stage_to_ranks[stage][0]];
    Json entry{{"actions", Json::object()}};
    Json timings = Json::object();
    for (const auto& [kind, name] : kKinds) {
      std::string key = std::to_string(stage) + name;
      const Json &own = first["measured"]["actions"], &others = first["others"]["actions"];
      if (own.contains(key)) entry["actions"][name] = own[key];
      if (own.contains(key) || others.contains(key))
        timings[name] = own.contains(key) ? own[key] : others[key];
    }
    const Json& held = first["stages"][std::to_string(stage)];
    entry["costs"] = StageCostsJson(run, stage, held, timings);
    entry["loss"] = held["loss"];
    out["stages"].push_back(std::move(entry));
  }
  return out;
}

void Print(const Json& s, const BenchOptions& options) {
  std::printf("step %s ms  (%s .. %s), %d steps after %d of warm-up\n",
              Milliseconds(s["step"]["median"]).c_str(), Milliseconds(s["step"]["low"]).c_str(),
              Milliseconds(s["step"]["high"]).c_str(), s["steps"].get<int>(), options.warmup);
  std::printf("bubble %.1f %%; inputs that arrived in time: %.1f %%\n",
              100 * s["bubble"].get<double>(), 100 * s["overlap"].get<double>());
  if (const std::string bodies = s["bodies"]; !bodies.empty()) std::printf("%s\n", bodies.c_str());
  std::printf("\nrank   busy ms  waited ms   idle %%   held MiB   peak MiB\n");
  for (size_t r = 0; r < s["ranks"].size(); ++r) {
    const Json& rank = s["ranks"][r];
    std::printf("%4zu %s  %s   %6.1f %10.1f %10.1f\n", r, Milliseconds(rank["busy"]).c_str(),
                Milliseconds(rank["waited"]).c_str(), 100 * rank["idle"].get<double>(),
                Mebibytes(rank["held_bytes"]), Mebibytes(rank["peak_bytes"]));
  }
  std::printf("\nstage action        count    median       low      high ms\n");
  for (size_t i = 0; i < s["stages"].size(); ++i)
    for (const auto& [name, timing] : s["stages"][i]["actions"].items())
      std::printf("%5zu %-12s %6d %s %s %s\n", i, name.c_str(), timing["count"].get<int>(),
                  Milliseconds(timing["median"]).c_str(), Milliseconds(timing["low"]).c_str(),
                  Milliseconds(timing["high"]).c_str());
  std::printf(
      "\ncosts of the stages, one microbatch\n"
      "stage      F ms      I ms      W ms      B ms  (I+W)/B  F to B MiB  I to W MiB\n");
  for (size_t i = 0; i < s["stages"].size(); ++i) {
    const Json& a = s["stages"][i]["costs"];
    double b = a["B"], split = a["I"].get<double>() + a["W"].get<double>();
    std::printf("%5zu %s %s %s %s   %6.2f  %10.2f  %10.2f\n", i, Milliseconds(a["F"]).c_str(),
                Milliseconds(a["I"]).c_str(), Milliseconds(a["W"]).c_str(),
                Milliseconds(a["B"]).c_str(), b > 0 ? split / b : 0, Mebibytes(a["activation"]),
                Mebibytes(a["kept_for_W"]));
  }
  std::fflush(stdout);
}

std::string CostsText(const RunPlan& run, const std::vector<Json>& ranks, const Json& summary) {
  Json stages = Json::array(), edges = Json::array();
  for (size_t s = 0; s < summary["stages"].size(); ++s) {
    stages.push_back(summary["stages"][s]["costs"]);
    const auto rank = static_cast<size_t>(run.conf.stage_to_ranks[s][0]);
    for (const Json& edge : ranks[rank]["stages"][std::to_string(s)]["edges"])
      edges.push_back(edge);
  }
  return Json{{"stages", stages}, {"edges", edges}, {"link", ranks[0]["link"]}}.dump(1) + "\n";
}

}  // namespace

void AddMeasurements(const std::vector<TraceEvent>& step, RankMeasurements& to) {
  double busy = 0;
  std::vector<double>* last = nullptr;  // times of the preceding compute action
  for (const TraceEvent& event : step) {
    const ActionKind kind = event.action.kind;
    const bool compute = IsCompute(kind);
    const double time = event.end - event.start - event.waited;
    if (compute || kind == ActionKind::kStep || kind == ActionKind::kReduceGrad) {
      std::vector<double>& times = to.actions[{event.action.stage, kind}];
      times.push_back(time);
      last = compute ? &times : nullptr;
    } else if (IsTransfer(kind) && last) {
      last->back() += time;
    }
    if (compute || kind == ActionKind::kStep) busy += time;
    if (compute && kind != ActionKind::kWeightGrad)
      ++(event.waited > 0 ? to.inputs_late : to.inputs_in_time);
    to.waited += event.waited;
  }
  to.busy.push_back(busy);
  to.step_ends.push_back(step.empty() ? 0 : step.back().end);
}

Json WriteMeasurements(const RankMeasurements& measured) {
  Json actions = Json::object();
  for (const auto& [key, seconds] : measured.actions)
    for (const auto& [kind, name] : kKinds)
      if (kind == key.second)
        actions[std::to_string(key.first) + name] = TimingJson(seconds, measured.busy.size());
  const double steps = static_cast<double>(std::max<size_t>(measured.busy.size(), 1));
  return {{"actions", actions},
          {"busy", TimingJson(measured.busy)},
          {"step_ends", measured.step_ends},
          {"firsts", measured.firsts},
          {"in_time", measured.inputs_in_time},
          {"late", measured.inputs_late},
          {"waited", measured.waited / steps * 1e6}};
}

bool HasNoise(const RankMeasurements& measured) {
  for (const auto& [key, seconds] : measured.actions)
    if (IsCompute(key.second) && IsNoisyTiming(TimingJson(seconds))) return true;
  return false;
}

Json LinkCostsJson(Transport& transport, c10::Device device) {
  if (transport.size() < 2) return {{"latency", 0}, {"bandwidth", nullptr}};
  transport.AllGather("");  // so that no rank is late for the measurement
  const ProfileLink link = MeasureLink(transport, 0, 1, 20, size_t{4} << 20, device);
  return {{"latency", link.latency * 1e6}, {"bandwidth", link.bytes_per_second / 1e6}};
}

void ReportBench(const RunPlan& run, const std::vector<Json>& ranks, const std::string& bodies,
                 const BenchOptions& options) {
  Json summary = Summary(run, ranks);
  summary["bodies"] = bodies;
  summary["steps"] = ranks[0]["steps"];
  const std::vector<std::string> noisy = NoisyTimings(run, ranks);
  summary["noisy"] = noisy;
  if (!options.costs.empty()) WriteFile(options.costs, CostsText(run, ranks, summary));
  if (!options.trace.empty()) {
    std::vector<Json> events;
    for (const Json& rank : ranks) events.push_back(rank["trace"]);
    WriteFile(options.trace, ChromeTrace(run.plan, ReadEvents(events)));
  }
  if (options.json)
    std::printf("%s\n", summary.dump(1).c_str());
  else
    Print(summary, options);
  if (!options.json && !noisy.empty())
    PrintWarning("noisy measurements, quartiles of " +
                 std::to_string(ranks[0]["steps"].get<int>()) + " steps: " + Join(noisy, "; ") +
                 "\n  stop other programs on these machines, or measure more --steps");
  std::fflush(stdout);
}

}  // namespace pipewright
