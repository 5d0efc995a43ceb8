#include "runtime/commands/bench_report.h"

#include <algorithm>
#include <cstdio>
#include <numeric>

#include "base/text.h"
#include "plan/actions.h"
#include "plan/simulate/trace.h"
#include "runtime/measure/links.h"
#include "runtime/measure/module_times.h"

namespace pipewright {

namespace {

const std::pair<ActionKind, const char*> kKinds[] = {
    {ActionKind::kForward, "F"},    {ActionKind::kBackward, "B"},
    {ActionKind::kInputGrad, "I"},  {ActionKind::kWeightGrad, "W"},
    {ActionKind::kOverlap, "pair"}, {ActionKind::kReduceGrad, "REDUCE_GRAD"},
    {ActionKind::kStep, "STEP"}};

Json TimingJson(std::vector<double> seconds) {
  const size_t count = seconds.size();
  const double sum = std::accumulate(seconds.begin(), seconds.end(), 0.0);
  Timing t = TimingOf(std::move(seconds));
  return {{"count", count},
          {"mean", count > 0 ? sum / static_cast<double>(count) * 1e6 : 0},
          {"median", t.median * 1e6},
          {"low", t.low * 1e6},
          {"high", t.high * 1e6}};
}

std::string Milliseconds(const Json& microseconds) {
  char text[32];
  std::snprintf(text, sizeof text, "%9.3f", microseconds.get<double>() / 1e3);
  return text;
}

double Mebibytes(const Json& bytes) { return bytes.get<double>() / (1 << 20); }

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
  for (size_t i = 1; i < ends.size(); ++i) steps.push_back(ends[i] - ends[i - 1]);
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
                            {"peak_bytes", m["peak_bytes"]}});
  }
  out["bubble"] =
      step > 0 ? std::max(0.0, 1 - busy / (step * static_cast<double>(ranks.size()))) : 0;
  out["overlap"] = in_time + late > 0 ? static_cast<double>(in_time) / (in_time + late) : 1.0;
  out["stages"] = Json::array();
  for (int stage = 0; stage < run.graph.stages; ++stage) {
    const Json& first = ranks[run.conf.stage_to_ranks[stage][0]];
    Json entry{{"alone", first["stages"][std::to_string(stage)]}, {"actions", Json::object()}};
    for (const auto& [kind, name] : kKinds) {
      std::string key = std::to_string(stage) + name;
      if (first["measured"]["actions"].contains(key))
        entry["actions"][name] = first["measured"]["actions"][key];
    }
    out["stages"].push_back(std::move(entry));
  }
  return out;
}

void Print(const Json& s, const BenchOptions& options) {
  std::printf("step %s ms  (%s .. %s), %d steps after %d of warm-up\n",
              Milliseconds(s["step"]["median"]).c_str(), Milliseconds(s["step"]["low"]).c_str(),
              Milliseconds(s["step"]["high"]).c_str(), options.steps, options.warmup);
  std::printf("bubble %.1f %%; inputs there when they were needed: %.1f %%\n",
              100 * s["bubble"].get<double>(), 100 * s["overlap"].get<double>());
  if (const std::string bodies = s["bodies"]; !bodies.empty()) std::printf("%s\n", bodies.c_str());
  std::printf("\nrank   busy ms  waited ms   idle %%   peak MiB\n");
  for (size_t r = 0; r < s["ranks"].size(); ++r) {
    const Json& rank = s["ranks"][r];
    std::printf("%4zu %s  %s   %6.1f %10.1f\n", r, Milliseconds(rank["busy"]).c_str(),
                Milliseconds(rank["waited"]).c_str(), 100 * rank["idle"].get<double>(),
                Mebibytes(rank["peak_bytes"]));
  }
  std::printf("\nstage action        count    median       low      high ms\n");
  for (size_t i = 0; i < s["stages"].size(); ++i)
    for (const auto& [name, timing] : s["stages"][i]["actions"].items())
      std::printf("%5zu %-12s %6d %s %s %s\n", i, name.c_str(), timing["count"].get<int>(),
                  Milliseconds(timing["median"]).c_str(), Milliseconds(timing["low"]).c_str(),
                  Milliseconds(timing["high"]).c_str());
  std::printf(
      "\nstages by themselves, one microbatch\n"
      "stage      F ms      I ms      W ms      B ms  (I+W)/B  F to B MiB  I to W MiB\n");
  for (size_t i = 0; i < s["stages"].size(); ++i) {
    const Json& a = s["stages"][i]["alone"];
    double b = a["B"], split = a["I"].get<double>() + a["W"].get<double>();
    std::printf("%5zu %s %s %s %s   %6.2f  %10.2f  %10.2f\n", i, Milliseconds(a["F"]).c_str(),
                Milliseconds(a["I"]).c_str(), Milliseconds(a["W"]).c_str(),
                Milliseconds(a["B"]).c_str(), b > 0 ? split / b : 0, Mebibytes(a["activation"]),
                Mebibytes(a["kept_for_W"]));
  }
  std::fflush(stdout);
}

std::string CostsText(const Json& summary, const Json& link) {
  Json stages = Json::array();
  for (const Json& stage : summary["stages"]) {
    stages.push_back(stage["alone"]);
    // Output gradients are extra memory in I; in the costs, memory kept until W counts as
    // activation.
    Json& alone = stages.back();
    if (alone["activation"] < alone["kept_for_W"]) alone["activation"] = alone["kept_for_W"];
    if (stage["actions"].contains("STEP")) alone["step"] = stage["actions"]["STEP"]["median"];
  }
  return Json{{"stages", stages}, {"link", link}}.dump(1) + "\n";
}

}  // namespace

void AddMeasurements(const std::vector<TraceEvent>& step, RankMeasurements& to) {
  double busy = 0;
  for (const TraceEvent& event : step) {
    const ActionKind kind = event.action.kind;
    const bool compute = IsCompute(kind);
    const double time = event.end - event.start - event.waited;
    if (compute || kind == ActionKind::kStep || kind == ActionKind::kReduceGrad)
      to.actions[{event.action.stage, kind}].push_back(time);
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
      if (kind == key.second) actions[std::to_string(key.first) + name] = TimingJson(seconds);
  const double steps = static_cast<double>(std::max<size_t>(measured.busy.size(), 1));
  return {{"actions", actions},
          {"busy", TimingJson(measured.busy)},
          {"step_ends", measured.step_ends},
          {"in_time", measured.inputs_in_time},
          {"late", measured.inputs_late},
          {"waited", measured.waited / steps * 1e6},
          {"peak_bytes", measured.peak_bytes}};
}

Json LinkCostsJson(Transport& transport) {
  if (transport.size() < 2) return {{"latency", 0}, {"bandwidth", nullptr}};
  transport.AllGather("");  // no rank is late for the measurement
  const ProfileLink link = MeasureLink(transport, 0, 1);
  return {{"latency", link.latency * 1e6}, {"bandwidth", link.bytes_per_second / 1e6}};
}

void ReportBench(const RunPlan& run, const std::vector<Json>& ranks, const std::string& bodies,
                 const BenchOptions& options) {
  Json summary = Summary(run, ranks);
  summary["bodies"] = bodies;
  if (!options.costs.empty()) WriteFile(options.costs, CostsText(summary, ranks[0]["link"]));
  if (!options.trace.empty()) {
    Trace trace;
    for (const Json& rank : ranks) {
      trace.ranks.emplace_back();
      for (const Json& event : rank["trace"]) {
        TimedAction timed;
        timed.action = event[0], timed.step = event[1];
        timed.start = event[2], timed.end = event[3];
        trace.ranks.back().push_back(timed);
      }
    }
    WriteFile(options.trace, ChromeTrace(run.plan, trace));
  }
  if (options.json)
    std::printf("%s\n", summary.dump(1).c_str());
  else
    Print(summary, options);
  std::fflush(stdout);
}

}  // namespace pipewright
