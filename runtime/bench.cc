#include "runtime/bench.h"

#include <ATen/ATen.h>
#include <ATen/Parallel.h>

#include <algorithm>
#include <optional>

#include "plan/actions.h"
#include "plan/error.h"
#include "plan/json.h"
#include "plan/package_files.h"
#include "plan/trace.h"
#include "runtime/bench_report.h"
#include "runtime/bench_requests.h"
#include "runtime/exec/clock.h"
#include "runtime/exec/phase.h"
#include "runtime/feed.h"
#include "runtime/matmul.h"
#include "runtime/memory_meter.h"
#include "runtime/module_times.h"
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

}  // namespace

void Bench(const BenchOptions& options, Transport& transport) {
  Session session;
  Phase(transport, "reading", [&] {
    session.job = ReadJob(options.job);
    if (!options.schedule.empty()) SetSchedule(session.job, options.schedule);
    if (IsAsynchronous(session.job))
      throw Error("schedule " + session.job.schedule, "its steps overlap: none can be measured",
                  "`train` writes the seconds of each step to its metrics");
    session.job.stop_on_nan = false;
    session.job.accumulate = 1;
    session.job.validation.every = 0;
    at::set_num_threads(session.job.threads);
    UseMatMul(session.job.matmul, session.job.path + ": matmul");
  });

  std::optional<MemoryMeter> meter;  // metering slows the run, so it is optional
  if (!options.on_request) meter.emplace();
  Feed feed;
  SessionOptions open{options.package, options.conf, ""};
  open.read_data = [&](Session&) {
    feed.Open(session.job, session.job.data, session.run, session.job.path + ": data", transport);
  };
  open.fed = [&](Session&) {
    return std::vector<Fed>{feed.First(session.job, session.run.manifest)};
  };
  OpenSession(
      session, open, transport,
      [&](int64_t minibatch, int microbatch) {
        return feed.Specs(session.run.manifest, minibatch, microbatch);
      },
      [&](int input, int64_t minibatch, int microbatch) {
        return feed.sampler->Microbatch(input, minibatch, microbatch);
      });

  Phase(transport, "opening outputs", [&] {
    OutputFiles outputs(
        RunFiles(options.package, session.run.manifest, session.job, {options.conf}));
    outputs.Add("--trace", options.trace, transport.rank() == 0);
    outputs.Add("--costs", options.costs, transport.rank() == 0);
  });

  if (options.on_request) {
    AnswerRequests(session, transport);
    feed.Finish();
    return;
  }

  Json mine;
  Phase(transport, "timing modules", [&] {
    mine["stages"] = StageTimes(
        session, options.package,
        InferShapes(options.package, session.run.manifest, feed.Specs(session.run.manifest, 0, 0)),
        transport.rank());
  });
  mine["link"] = LinkCostsJson(transport);

  int64_t step = 0;
  for (; step < options.warmup; ++step) RunStep(session, transport, step);
  transport.AllGather("");
  const double origin = Now();
  meter->ResetPeak();
  RankMeasurements measured;
  std::vector<TimedAction> trace;
  for (; step < options.warmup + options.steps; ++step) {
    RunStep(session, transport, step);
    AddMeasurements(session.executor->trace(), measured);
    AddTrace(session.executor->trace(), static_cast<int>(step - options.warmup), origin, trace);
  }
  feed.Finish();
  measured.peak_bytes = meter->peak();
  mine["measured"] = WriteMeasurements(measured);
  const std::string bodies = DescribeBodies(session, transport);
  mine["trace"] = Json::array();
  for (const TimedAction& event : trace)
    mine["trace"].push_back({event.action, event.step, event.start, event.end});
  std::vector<std::string> all = transport.AllGather(mine.dump());
  Phase(transport, "writing", [&] {
    if (transport.rank() != 0) return;
    std::vector<Json> ranks;
    for (const std::string& text : all) ranks.push_back(Json::parse(text));
    ReportBench(session.run, ranks, bodies, options);
  });
}

}  // namespace pipewright
