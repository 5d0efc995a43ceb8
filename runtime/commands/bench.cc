#include "runtime/commands/bench.h"

#include <ATen/ATen.h>
#include <ATen/Parallel.h>

#include <algorithm>
#include <optional>

#include "base/error.h"
#include "base/json.h"
#include "base/process/messages.h"
#include "formats/package/package_files.h"
#include "plan/actions.h"
#include "plan/halves.h"
#include "plan/simulate/trace.h"
#include "runtime/commands/bench_memory.h"
#include "runtime/commands/bench_report.h"
#include "runtime/commands/bench_requests.h"
#include "runtime/commands/run_trace.h"
#include "runtime/cpu/matmul.h"
#include "runtime/exec/clock.h"
#include "runtime/exec/phase.h"
#include "runtime/feed.h"
#include "runtime/measure/memory_meter.h"
#include "runtime/recorded/choose_body.h"
#include "runtime/session.h"

namespace pipewright {

namespace {

// Runs the warm-up steps, and more until each module has chosen its body, up to a limit.
void WarmUp(const BenchOptions& options, Session& session, Feed& feed, int64_t& step) {
  const int64_t most = options.warmup + 1 + kMostRunsToChoose / session.job.microbatches;
  for (bool settled = false; step < options.warmup || (!settled && step < most);) {
    session.Step(feed, step++);
    settled = true;
    for (const auto& [module, state] : session.stages->Bodies())
      settled = settled && state.settled;
    for (const std::string& other : session.transport.AllGather(settled ? "1" : "0"))
      settled = settled && other == "1";
  }
}

Json ToJson(const StageBytes& bytes) {
  return {{"activation", bytes.activation},
          {"received", bytes.received},
          {"kept_for_W", bytes.kept_for_W},
          {"gradients", bytes.gradients},
          {"peak",
           {{"F", bytes.peak.F},
            {"I", bytes.peak.I},
            {"B", bytes.peak.B},
            {"W", bytes.peak.W},
            {"first_B", bytes.peak.first_B},
            {"first_W", bytes.peak.first_W},
            {"step", bytes.peak.step},
            {"forward_only", bytes.peak.forward_only}}}};
}

c10::Device DeviceOf(const Session& session) {
  return c10::Device(session.devices[static_cast<size_t>(session.transport.rank())]);
}

// Returns what this rank's stages hold, as in a costs file: {"0": {"activation": ...}}.
Json StagesJson(const Session& session, const RankBytes& bytes) {
  Json stages = Json::object();
  double in_memory = 0, trained = 0;
  for (const auto& [stage, of_stage] : bytes.stages) {
    in_memory += WeightBytesOf(session, stage).in_memory;
    trained += WeightBytesOf(session, stage).trained;
  }
  // All else that the rank holds, mostly optimizer state, is attributed to the trained weights.
  const double besides = std::max(0.0, static_cast<double>(bytes.held) - in_memory);
  for (const auto& [stage, of_stage] : bytes.stages) {
    Json& out = stages[std::to_string(stage)] = ToJson(of_stage);
    const WeightBytes weights = WeightBytesOf(session, stage);
    out["weights"] = weights.all + (trained > 0 ? besides * weights.trained / trained
                                                : besides / static_cast<double>(stages.size()));
    const StageBytes& again = bytes.again.at(stage);
    out["recompute"] = {{"activation", again.activation},
                        {"peak",
                         {{"I", again.peak.I},
                          {"B", again.peak.B},
                          {"first_B", again.peak.first_B}}}};
    const auto& edges = session.run.graph.edges;
    out["edges"] = Json::array();
    for (size_t e = 0; e < edges.size(); ++e)
      if (edges[e].from == stage)
        out["edges"].push_back(
            {{"from", stage},
             {"to", edges[e].to},
             {"bytes", session.stages->MessageBytes(static_cast<int>(e), 0, false)},
             {"back", edges[e].gradient
                          ? session.stages->MessageBytes(static_cast<int>(e), 0, true)
                          : 0}});
    const auto found = bytes.losses.find(stage);
    const LossCosts loss = found == bytes.losses.end() ? LossCosts{} : found->second;
    out["loss"] = {{"kept", loss.kept},
                   {"peak", loss.peak},
                   {"F", 1e6 * loss.forward},
                   {"B", 1e6 * loss.backward}};
  }
  return stages;
}

Job ReadBenchJob(const BenchOptions& options) {
  Job job = ReadJob(options.job, options.set);
  if (!options.schedule.empty()) SetSchedule(job, options.schedule);
  if (IsAsynchronous(job))
    throw Error("schedule " + job.schedule, "its steps overlap, so none can be measured",
                "`train` writes the seconds of each step to its metrics");
  job.stop_on_nan = false;
  job.accumulate = 1;
  job.validation.every = 0;
  return job;
}

// Returns {true if some stage has no B, true if some stage has no I}.
std::pair<bool, bool> LackingForms(const Plan& plan) {
  const auto stages = static_cast<size_t>(plan.stages);
  std::vector<bool> whole(stages), halves(stages);
  for (const std::vector<Action>& actions : plan.ranks)
    for (const Action& a : actions)
      if (HasBackward(a))
        (a.kind == ActionKind::kInputGrad ? halves : whole)[static_cast<size_t>(
            BackwardStage(a))] = true;
  auto lacks = [](const std::vector<bool>& found) {
    return std::find(found.begin(), found.end(), false) != found.end();
  };
  return {lacks(whole), lacks(halves)};
}

// Runs `count` steps by `plan` on all ranks at once. `trace`, if given, gets their events.
void StepsBy(Session& session, Feed& feed, const Plan& plan, int64_t& step, int count,
              RankMeasurements& measured, std::vector<TimedAction>* trace, double origin) {
  session.transport.AllGather("");
  session.StepBy(plan, *session.stages);
  measured.firsts.push_back(measured.steps());
  for (const int64_t last = step + count; step < last; ++step) {
    session.Step(feed, step);
    AddMeasurements(session.trace(), measured);
    if (trace) AddEvents(session.trace(), measured.steps() - 1, origin, *trace);
  }
}

// Measures the actions of the plan in its own steps, and those that it lacks (B if it has I and W,
// and vice versa) in steps of the same plan with the backward whole or split. Repeats noisy
// measurements, up to four times as many steps as requested. Returns the measurements of this rank:
// {"measured", "others", "trace", "steps"}.
Json MeasureTimes(const BenchOptions& options, Session& session, Feed& feed, int64_t& step) {
  RankMeasurements measured, others;
  std::vector<TimedAction> trace;
  const Plan& plan = session.run.plan;
  std::vector<Plan> variants;
  const auto [lacks_whole, lacks_halves] = LackingForms(plan);
  if (lacks_whole) variants.push_back(InWhole(plan));
  if (lacks_halves) variants.push_back(InHalves(plan));
  session.transport.AllGather("");
  const double origin = Now();
  for (int round = 0; round < 4; ++round) {
    // The trace covers only the first round, whose steps run in a row.
    StepsBy(session, feed, plan, step, options.steps, measured, round == 0 ? &trace : nullptr,
             origin);
    for (const Plan& variant : variants)
      StepsBy(session, feed, variant, step, std::max(2, options.steps / 2), others, nullptr,
               origin);
    bool noisy = false;
    const bool mine = HasNoise(measured) || HasNoise(others);
    for (const std::string& rank : session.transport.AllGather(mine ? "1" : "0"))
      noisy = noisy || rank == "1";
    if (!noisy) break;
  }
  session.StepBy(plan, *session.stages);
  return {{"measured", WriteMeasurements(measured)},
          {"others", WriteMeasurements(others)},
          {"steps", measured.steps()},
          {"trace", WriteEvents(trace)}};
}

}  // namespace

void Bench(const BenchOptions& options, Transport& transport) {
  Session session(transport);
  const Job& job = session.job;
  Phase(transport, "reading", [&] {
    session.job = ReadBenchJob(options);
    at::set_num_threads(job.threads);
    UseMatMul(job.matmul, job.path + ": matmul");
  });
  std::optional<MemoryMeter> meter;  // counting slows the run down
  if (!options.on_request) meter.emplace();
  SessionOptions asked;
  asked.package = options.package;
  asked.conf = options.conf;
  asked.weights = options.weights;
  asked.verify_files = options.verify_files;
  asked.trace_memory = !options.trace.empty();
  asked.device = options.device;
  asked.links = options.links;
  asked.share_devices = options.share_devices;
  session.Open(asked);
  if (transport.rank() == 0 && !options.json && !options.on_request &&
      std::any_of(session.devices.begin(), session.devices.end(),
                  [](const std::string& device) { return device != "cpu"; }))
    PrintNote(
        "on devices, waiting for inputs counts as idle time: \"arrived in time\" and "
        "\"waited\" are only of the host");
  if (meter) meter->Show(DeviceOf(session));
  Feed feed;
  feed.Open(job, job.data, session.run, job.path + ": data", transport);
  session.Load({&feed}, {{"weights", options.weights},
                         {"steps", std::to_string(options.steps)},
                         {"warmup", std::to_string(options.warmup)}});
  session.Start();
  Phase(transport, "opening outputs", [&] {
    OutputFiles outputs(
        RunFiles(options.package, session.run.manifest, job, {options.weights, options.conf}));
    outputs.Add("--trace", options.trace, transport.rank() == 0);
    outputs.Add("--costs", options.costs, transport.rank() == 0);
  });
  if (options.on_request) {
    AnswerRequests(session, feed);
    feed.Finish();
    return;
  }

  int64_t step = 0;
  WarmUp(options, session, feed, step);
  const RankBytes bytes = MeasureBytes(session, feed, step, *meter);
  meter.reset();
  Json mine = MeasureTimes(options, session, feed, step);
  feed.Finish();
  mine["stages"] = StagesJson(session, bytes);
  mine["measured"]["held_bytes"] = bytes.held;
  mine["measured"]["peak_bytes"] = bytes.peak;
  mine["measured"]["forward_only_peak_bytes"] = bytes.forward_only_peak;
  mine["link"] = LinkCostsJson(session.Values(), DeviceOf(session));
  const std::string bodies = DescribeBodies(session);
  const std::vector<std::string> all = transport.AllGather(mine.dump());
  Phase(transport, "writing", [&] {
    if (transport.rank() != 0) return;
    std::vector<Json> ranks;
    for (const std::string& text : all) ranks.push_back(Json::parse(text));
    ReportBench(session.run, ranks, bodies, options);
  });
}

}  // namespace pipewright
