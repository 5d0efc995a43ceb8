#include "runtime/commands/bench.h"

#include <ATen/ATen.h>
#include <ATen/Parallel.h>

#include <algorithm>
#include <optional>

#include "base/error.h"
#include "base/json.h"
#include "formats/package/package_files.h"
#include "plan/actions.h"
#include "plan/simulate/trace.h"
#include "runtime/commands/bench_report.h"
#include "runtime/commands/bench_requests.h"
#include "runtime/cpu/matmul.h"
#include "runtime/exec/clock.h"
#include "runtime/exec/phase.h"
#include "runtime/feed.h"
#include "runtime/measure/memory_meter.h"
#include "runtime/measure/module_times.h"
#include "runtime/recorded/choice.h"
#include "runtime/session.h"

namespace pipewright {

namespace {

// Times the stages of this rank, each module by itself: {"0": {"F": ..., ...}}.
Json StageTimes(const Session& session, const std::string& package,
                const std::vector<TensorSpec>& specs, int rank) {
  Json stages = Json::object();
  const Conf& conf = session.run.conf;
  for (size_t m = 0; m < conf.module_to_stage.size(); ++m) {
    const int stage = conf.module_to_stage[m];
    if (conf.stage_to_ranks[stage][0] != rank) continue;
    const int index = static_cast<int>(m);
    LoadedModule module = LoadModule(package, session.run.manifest, index);
    UseBody(module, BodyAskedFor(session.job.body).value_or(BodyChoice::kAuto));
    TimingOptions timing;
    timing.seconds = 2;
    ModuleTimes times;
    try {
      times = TimeModule(module, session.run.manifest,
                         ExampleInputs(session.run.manifest, index, specs), timing);
    } catch (const std::exception& e) {
      throw Error(package + "/" + session.run.manifest.modules[m].code,
                  std::string("fails on made-up numbers, on which bench measures it by itself\n") +
                      e.what(),
                  "`pipewright profile` measures modules on samples; how long a step takes, the "
                  "metrics of `train` say");
    }
    Json& sum = stages[std::to_string(stage)];
    if (sum.is_null()) sum = Json::object();
    auto add = [&](const char* key, double value) { sum[key] = sum.value(key, 0.0) + value; };
    add("F", times.forward.median * 1e6);
    add("I", times.input_grad.median * 1e6);
    add("W", times.weight_grad.median * 1e6);
    add("B", times.backward.median * 1e6);
    add("activation", static_cast<double>(times.activation_bytes));
    add("kept_for_W", static_cast<double>(times.kept_for_weights_bytes));
    double weights = 0;
    for (const at::Tensor& weight : module.weights) weights += static_cast<double>(weight.nbytes());
    add("weights", weights);
  }
  for (auto& [stage, sum] : stages.items()) {
    // Bytes that leave the stage, and bytes that a recomputation of it starts from.
    int64_t output = 0, input = 0;
    for (size_t id = 0; id < specs.size(); ++id) {
      const ValueInfo& value = session.run.manifest.values[id];
      if (value.producer < 0) continue;
      bool here = conf.module_to_stage[value.producer] == std::stoi(stage), used = false;
      for (int consumer : value.consumers)
        used = used || (conf.module_to_stage[consumer] == std::stoi(stage)) != here;
      if (used) (here ? output : input) += specs[id].bytes();
    }
    sum["output"] = output;
    sum["recompute"] = {{"time", sum["F"]}, {"activation", input}};
  }
  return stages;
}

// Adds the events of a rank's step; times are microseconds since `origin`.
void AddTrace(const std::vector<TraceEvent>& events, int step, double origin,
              std::vector<TimedAction>& out) {
  for (size_t i = 0; i < events.size(); ++i) {
    const TraceEvent& event = events[i];
    bool compute = IsCompute(event.action.kind);
    // A compute action begins when its inputs have arrived.
    double start = compute ? event.start + event.waited : event.start;
    TimedAction timed;
    timed.action = static_cast<int>(i);
    timed.step = step;
    timed.start = (start - origin) * 1e6;
    timed.end = (event.end - origin) * 1e6;
    out.push_back(timed);
  }
}

Job ReadBenchJob(const BenchOptions& options) {
  Job job = ReadJob(options.job);
  if (!options.schedule.empty()) SetSchedule(job, options.schedule);
  if (IsAsynchronous(job))
    throw Error("schedule " + job.schedule, "its steps overlap: none can be measured",
                "`train` writes the seconds of each step to its metrics");
  job.stop_on_nan = false;
  job.accumulate = 1;
  job.validation.every = 0;
  return job;
}

// Runs the steps. Returns what they cost this rank: {"measured", "trace"}.
Json MeasureRun(const BenchOptions& options, Session& session, Feed& feed, MemoryMeter& meter) {
  int64_t step = 0;
  for (; step < options.warmup; ++step) session.Step(feed, step);
  session.transport.AllGather("");
  const double origin = Now();
  meter.ResetPeak();
  RankMeasurements measured;
  std::vector<TimedAction> trace;
  for (; step < options.warmup + options.steps; ++step) {
    session.Step(feed, step);
    AddMeasurements(session.trace(), measured);
    AddTrace(session.trace(), static_cast<int>(step - options.warmup), origin, trace);
  }
  feed.Finish();
  measured.peak_bytes = meter.peak();
  Json mine{{"measured", WriteMeasurements(measured)}, {"trace", Json::array()}};
  for (const TimedAction& event : trace)
    mine["trace"].push_back({event.action, event.step, event.start, event.end});
  return mine;
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
  std::optional<MemoryMeter> meter;  // counting takes its time
  if (!options.on_request) meter.emplace();
  SessionOptions asked;
  asked.package = options.package;
  asked.conf = options.conf;
  session.Open(asked);
  Feed feed;
  feed.Open(job, job.data, session.run, job.path + ": data", transport);
  session.Load({&feed});
  session.Start();
  Phase(transport, "opening outputs", [&] {
    OutputFiles outputs(RunFiles(options.package, session.run.manifest, job, {options.conf}));
    outputs.Add("--trace", options.trace, transport.rank() == 0);
    outputs.Add("--costs", options.costs, transport.rank() == 0);
  });
  if (options.on_request) {
    AnswerRequests(session, feed);
    feed.Finish();
    return;
  }

  Json mine;
  Phase(transport, "timing modules", [&] {
    const auto specs = InferShapes(options.package, session.run.manifest, feed.Specs(0, 0));
    mine["stages"] = StageTimes(session, options.package, specs, transport.rank());
  });
  mine["link"] = LinkCostsJson(transport);
  mine.update(MeasureRun(options, session, feed, *meter));
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
