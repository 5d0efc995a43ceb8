#include "runtime/commands/bench_memory.h"

#include <algorithm>

#include "base/dtype.h"
#include "plan/halves.h"
#include "plan/schedules/table.h"

namespace pipewright {

namespace {

constexpr int kTimes = 5;  // repetitions of each measurement; the median counts

// Waits until all messages of the previous step have been received, and frees what was sent.
void Settle(Transport& transport) {
  transport.AllGather("");
  transport.Pending();
}

// Returns the plan of a step of two microbatches per replica, so that many microbatches need not
// fit in memory: the first makes the gradient sums, and the second adds to them. With weights on
// disk, returns the run's own plan, since they are read in its order.
Plan SmallPlan(const Session& session) {
  if (!session.run.conf.offloaded_stages.empty()) return session.run.plan;
  Job job = session.job;
  job.schedule = kForwardSchedule;
  job.plan.clear();
  size_t replicas = 1;
  for (const std::vector<int>& ranks : session.run.conf.stage_to_ranks)
    replicas = std::max(replicas, ranks.size());
  job.microbatches = std::min(job.microbatches, 2 * static_cast<int>(replicas));
  return MakeRunPlan(session.options.package, session.options.conf, job, session.transport.size(),
                     false, session.options.device_map)
      .plan;
}

// Returns the modules that are recomputed even if their stage as a whole is not.
std::vector<bool> SingleModules(const Session& session) {
  std::vector<bool> single = session.recompute();
  const RunPlan& run = session.run;
  for (int stage : run.plan.recompute)
    for (size_t m = 0; m < single.size(); ++m)
      if (run.conf.module_to_stage[m] == stage &&
          std::count(run.on_disk[m].begin(), run.on_disk[m].end(), true) == 0)
        single[m] = false;
  return single;
}

int64_t Middle(std::vector<int64_t> values) {
  std::sort(values.begin(), values.end());
  return std::max<int64_t>(0, values[values.size() / 2]);
}

// Returns the median of each figure. Single ones change if a message leaves sooner or later than
// usual, or while a module compares its bodies.
StageBytes MiddleOf(const std::vector<StageBytes>& all) {
  auto middle = [&](auto figure) {
    std::vector<int64_t> values;
    for (const StageBytes& one : all) values.push_back(figure(one));
    return Middle(std::move(values));
  };
  StageBytes out;
  out.activation = middle([](const StageBytes& b) { return b.activation; });
  out.received = middle([](const StageBytes& b) { return b.received; });
  out.kept_for_W = middle([](const StageBytes& b) { return b.kept_for_W; });
  out.gradients = middle([](const StageBytes& b) { return b.gradients; });
  out.peak.F = middle([](const StageBytes& b) { return b.peak.F; });
  out.peak.I = middle([](const StageBytes& b) { return b.peak.I; });
  out.peak.B = middle([](const StageBytes& b) { return b.peak.B; });
  out.peak.W = middle([](const StageBytes& b) { return b.peak.W; });
  out.peak.first_B = middle([](const StageBytes& b) { return b.peak.first_B; });
  out.peak.first_W = middle([](const StageBytes& b) { return b.peak.first_W; });
  out.peak.step = middle([](const StageBytes& b) { return b.peak.step; });
  out.peak.forward_only = middle([](const StageBytes& b) { return b.peak.forward_only; });
  return out;
}

// Fills in the figures of forward-only runs.
void MeasureForwardOnly(Session& session, Microbatches& source, MemoryMeter& meter,
                        RankBytes& bytes) {
  const Plan plan = MakeForwardPlan(session.job, session.run);
  std::map<int, std::vector<int64_t>> peaks;  // by stage
  std::vector<int64_t> most;
  for (int i = 0; i < kTimes; ++i) {
    Settle(session.transport);
    MeteredStages metered(*session.stages, meter);
    session.EvaluateBy(plan, metered, source, i);
    most.push_back(metered.peak());
    for (const auto& [stage, of_stage] : metered.bytes()) peaks[stage].push_back(of_stage.peak.F);
  }
  for (const auto& [stage, all] : peaks) bytes.stages[stage].peak.forward_only = Middle(all);
  bytes.forward_only_peak = Middle(most);
}

}  // namespace

RankBytes MeasureBytes(Session& session, Microbatches& source, int64_t& step, MemoryMeter& meter) {
  RankBytes bytes;
  auto run = [&](const Plan& plan) {
    Settle(session.transport);
    MeteredStages metered(*session.stages, meter);
    bytes.held = meter.live();
    session.StepBy(plan, metered);
    session.Step(source, step++);
    bytes.peak = metered.peak();
    session.StepBy(session.run.plan, *session.stages);
    return metered.bytes();
  };
  const Plan small = SmallPlan(session), whole = InWhole(small), halves = InHalves(small);
  auto measure = [&] {
    std::map<int, std::vector<StageBytes>> all;
    for (int i = 0; i < kTimes; ++i) {
      std::map<int, StageBytes> stages = run(whole);
      for (const auto& [stage, half] : run(halves)) {
        StageBytes& both = stages[stage];
        both.kept_for_W = half.kept_for_W;
        both.peak.I = half.peak.I, both.peak.W = half.peak.W;
        both.peak.first_W = half.peak.first_W;
      }
      for (const auto& [stage, both] : stages) all[stage].push_back(both);
    }
    std::map<int, StageBytes> middle;
    for (const auto& [stage, times] : all) middle[stage] = MiddleOf(times);
    return middle;
  };
  session.stages->Recompute(std::vector<bool>(session.recompute().size(), true));
  bytes.again = measure();
  session.stages->Recompute(SingleModules(session));
  bytes.stages = measure();
  session.stages->Recompute(session.recompute());
  bytes.losses = MeasureLosses(session, source, meter);
  if (session.run.conf.offloaded_stages.empty()) MeasureForwardOnly(session, source, meter, bytes);
  std::vector<int64_t> held, beyond;
  for (int i = 0; i < kTimes; ++i) {
    run(session.run.plan);
    held.push_back(bytes.held);
    beyond.push_back(bytes.peak - bytes.held);
  }
  bytes.held = Middle(held);
  bytes.peak = bytes.held + Middle(beyond);
  return bytes;
}

WeightBytes WeightBytesOf(const Session& session, int stage) {
  WeightBytes bytes;
  const RunPlan& run = session.run;
  for (size_t m = 0; m < run.manifest.modules.size(); ++m) {
    if (run.conf.module_to_stage[m] != stage) continue;
    const std::vector<WeightInfo>& held = run.manifest.modules[m].held;
    for (size_t w = 0; w < held.size(); ++w) {
      const Dtype* dtype = FindDtype(held[w].dtype);
      double size = dtype ? dtype->bits / 8.0 : 4;
      for (int64_t length : held[w].shape) size *= static_cast<double>(length);
      bytes.all += size;
      if (run.on_disk[m].empty() || !run.on_disk[m][w]) bytes.in_memory += size;
      if (held[w].kind == WeightKind::kParameter && held[w].requires_grad) bytes.trained += size;
    }
  }
  return bytes;
}

}  // namespace pipewright
