#include "runtime/train.h"

#include <ATen/ATen.h>
#include <ATen/Parallel.h>

#include <algorithm>
#include <cstdio>
#include <fstream>
#include <numeric>

#include "plan/atomic_file.h"
#include "plan/error.h"
#include "plan/json.h"
#include "plan/text.h"
#include "runtime/checkpoint.h"
#include "runtime/exec/stop.h"
#include "runtime/feed.h"
#include "runtime/progress.h"
#include "runtime/weights.h"

namespace pipewright {

namespace {

Job ReadJobOf(const RunOptions& options) {
  Job job = ReadJob(options.job);
  if (options.steps >= 0) job.steps = options.steps;
  if (!options.schedule.empty()) SetSchedule(job, options.schedule);
  if (!options.save.empty()) job.save = options.save;
  if (!options.metrics.empty()) job.metrics = options.metrics;
  return job;
}

// Reading the job is a phase of its own: nothing else can start without it.
void ReadJobPhase(const RunOptions& options, Session& session, Transport& transport) {
  std::string error;
  try {
    session.job = ReadJobOf(options);
    at::set_num_threads(session.job.threads);
  } catch (const std::exception& e) {
    error = e.what();
  }
  Vote(transport, "reading", error);
}

void PrintStart(const Session& session, const Transport& transport) {
  if (transport.rank() != 0) return;
  const Job& job = session.job;
  std::printf("%d rank%s, %zu modules in %d stages, %s, %d microbatches of %lld\n",
              transport.size(), transport.size() == 1 ? "" : "s",
              session.run.manifest.modules.size(), session.run.graph.stages,
              job.plan.empty() ? job.schedule.c_str() : job.plan.c_str(), job.microbatches,
              static_cast<long long>(job.microbatch_size));
  if (!transport.hosts().empty()) std::printf("%s\n", HostsText(transport.hosts()).c_str());
  std::fflush(stdout);
}

void PrintBusy(const Session& session, Transport& transport, double busy, double total) {
  char line[64];
  std::snprintf(line, sizeof line, "%.1f", total > 0 ? 100 * busy / total : 0);
  std::vector<std::string> all = transport.AllGather(line);
  if (transport.rank() != 0) return;
  for (int rank = 0; rank < transport.size(); ++rank)
    std::printf("rank %d  busy %5s %%  %s\n", rank, all[rank].c_str(),
                Describe(session, rank).c_str());
  std::fflush(stdout);
}

// The checkpoint that the command line asks for; one of step 0 where training starts anew.
RunCheckpoint ResumeAsAsked(const RunOptions& options, Session& session, Transport& transport) {
  const std::string& folder = session.job.checkpoint.folder;
  std::string from = options.resume ? folder : options.resume_from;
  std::string error;
  if (options.resume && folder.empty())
    error = Error(session.job.path, "--resume: the job writes no checkpoints",
                  "add \"checkpoint\": {\"to\": \"FOLDER\", \"every\": STEPS}")
                .what();
  if (from.empty() && !folder.empty() && transport.rank() == 0)
    if (std::vector<std::string> there = ListCheckpoints(folder); !there.empty())
      error = Error(folder, "holds checkpoints already, up to " + there[0],
                    "--resume goes on from it; to start anew, remove them or name another folder")
                  .what();
  Vote(transport, "resuming", error);
  if (from.empty()) return {};
  RunCheckpoint checkpoint = Resume(from, session, transport);
  if (checkpoint.path.empty() && !options.resume)
    throw AgreedError(from + ": no complete checkpoint is there");
  return checkpoint;
}

// What a rank reads: what it trains on, and what it validates with.
struct Feeds {
  Feed training, validation;
  int64_t sweeps = 0;  // minibatches of a validation

  void Open(const Job& job, const Manifest& manifest) {
    training.Open(job, job.data, manifest, job.path + ": data");
    if (job.validation.every == 0) return;
    validation.Open(job, job.validation.data, manifest, job.path + ": validation.data");
    int64_t all = validation.sampler->per_epoch();
    sweeps = job.validation.steps ? std::min(job.validation.steps, all) : all;
  }
};

StepReport ReportOf(Session& session, Feed& feed, int64_t step) {
  const Job& job = session.job;
  StepReport report;
  report.step = step;
  report.losses = session.losses;
  std::vector<double> weighted = session.losses;
  for (size_t i = 0; i < weighted.size(); ++i)
    weighted[i] *=
        feed.LossWeight(job, step * job.accumulate + static_cast<int64_t>(i) / job.microbatches,
                        static_cast<int>(i) % job.microbatches);
  report.loss = std::accumulate(weighted.begin(), weighted.end(), 0.0) /
                static_cast<double>(std::max<size_t>(1, weighted.size()));
  report.learning_rate = session.stages->updater().learning_rate();
  report.outcome = session.outcome;
  if (job.loss_scale.used) report.loss_scale = session.loss_scale;
  if (job.accuracy && session.hits.count)
    report.accuracy =
        static_cast<double>(session.hits.correct) / static_cast<double>(session.hits.count);
  return report;
}

}  // namespace

std::string AgreedText(const RunOptions& options) {
  return Join(
      {options.weights, std::to_string(options.steps), options.schedule, options.save,
       options.metrics, options.save_gradients, options.resume ? "resume" : "", options.resume_from,
       options.input, options.output, std::to_string(options.microbatches), options.device_map},
      "\n");
}

void Train(const RunOptions& options, Transport& transport) {
  Session session;
  ReadJobPhase(options, session, transport);
  const Job& job = session.job;
  Feeds feeds;
  RunCheckpoint resumed;
  SessionOptions open{options.package, options.conf, options.weights};
  open.agreed = AgreedText(options);
  open.keep_gradients = !options.save_gradients.empty();
  open.loss_weight = [&](int microbatch) {
    return session.evaluating ? 1 : feeds.training.LossWeight(job, session.minibatch, microbatch);
  };
  open.restore = [&](Session&) {
    resumed = ResumeAsAsked(options, session, transport);
    feeds.training.sampler->StartAt(resumed.step * job.accumulate, resumed.data);
    return resumed.step;
  };
  OpenSession(
      session, open, transport,
      [&](int64_t, int) {
        if (!feeds.training.data) feeds.Open(job, session.run.manifest);
        return (session.evaluating ? feeds.validation : feeds.training).Specs(session.run.manifest);
      },
      [&](int input, int microbatch) {
        Feed& feed = session.evaluating ? feeds.validation : feeds.training;
        return feed.sampler->Microbatch(input, session.minibatch, microbatch);
      });
  std::unique_ptr<Progress> progress;
  std::string error;
  try {
    // Not after the last step.
    for (const std::string& file : {job.save, options.save_gradients})
      if (transport.rank() == 0 && !file.empty()) CheckWritable(file);
    if (session.stages->computes_loss())
      progress =
          std::make_unique<Progress>(job,
                                     job.accumulate * job.microbatches * job.microbatch_size *
                                         feeds.training.data->tokens_per_sample(),
                                     job.data.tokens.empty() ? "samples" : "tokens", resumed.step);
  } catch (const std::exception& e) {
    error = e.what();
  }
  Vote(transport, "opening outputs", error);
  std::unique_ptr<Checkpointer> checkpointer;
  if (!job.checkpoint.folder.empty())
    checkpointer = std::make_unique<Checkpointer>(session, transport);
  PrintStart(session, transport);
  if (!resumed.path.empty() && transport.rank() == 0)
    std::printf("resumed from %s\n", resumed.path.c_str());

  const Manifest& manifest = session.run.manifest;
  int loss_module = manifest.values[manifest.outputs[job.loss.output]].producer;
  RankReports reports(
      transport, session.run.conf.stage_to_ranks[session.run.conf.module_to_stage[loss_module]][0]);
  StopAgreement stop(transport);
  bool stopped = false;
  double busy = 0, begin = Now();
  int64_t step = resumed.step;
  for (; step < job.steps && !stopped; ++step) {
    double start = Now();
    RunStep(session, transport, step);
    busy += session.busy;
    double seconds = Now() - start;
    reports.Add({session.busy, seconds, ResidentBytes()});
    if (job.check_shared)
      CheckSharedCopies(session.run.manifest, session.run.conf, *session.stages, transport);
    stopped = stop.AfterStep();
    DataPosition next = feeds.training.sampler->Position((step + 1) * job.accumulate);
    if (checkpointer && stopped)
      checkpointer->Save(step + 1, next);
    else if (checkpointer)
      checkpointer->AfterStep(step + 1, next);
    StepReport report;
    if (progress) report = ReportOf(session, feeds.training, step);
    report.seconds = seconds;
    Evaluation validation;
    if (job.validation.every > 0 && (step + 1) % job.validation.every == 0) {
      for (int64_t i = 0; i < feeds.sweeps; ++i) RunSweep(session, i, validation);
      report.validation = &validation;
    }
    if (progress) progress->Step(report, reports.newest());
  }
  stop.Finish();
  reports.Finish();
  if (stopped && transport.rank() == 0)
    std::printf("stopped after step %lld, as asked\n", static_cast<long long>(step));
  PrintBusy(session, transport, busy, Now() - begin);
  if (checkpointer) checkpointer->Finish();
  // What a run that was stopped goes on from is its checkpoint; without one, at least the weights
  // remain.
  if (!job.save.empty() && !(stopped && checkpointer)) {
    SaveWeights(job.save, session.run.manifest, session.run.conf, *session.stages, transport);
    if (transport.rank() == 0) std::printf("weights saved in %s\n", job.save.c_str());
  }
  if (!options.save_gradients.empty())
    SaveGradients(options.save_gradients, session.run.manifest, session.run.conf, *session.stages,
                  transport);
}

void Evaluate(const RunOptions& options, Transport& transport) {
  Session session;
  ReadJobPhase(options, session, transport);
  const Job& job = session.job;
  Feed feed;
  SessionOptions open{options.package, options.conf, options.weights};
  open.agreed = AgreedText(options);
  open.training = false;
  OpenSession(
      session, open, transport,
      [&](int64_t, int) {
        if (!feed.data) feed.Open(job, job.data, session.run.manifest, job.path + ": data");
        return feed.Specs(session.run.manifest);
      },
      [&](int input, int microbatch) {
        return feed.sampler->Microbatch(input, session.minibatch, microbatch);
      });
  int64_t steps = options.steps >= 0 ? options.steps : feed.sampler->per_epoch();
  Evaluation evaluation;
  double begin = Now();
  for (int64_t step = 0; step < steps; ++step) RunSweep(session, step, evaluation);
  std::string error;
  if (session.stages->computes_loss() && steps > 0) {
    int64_t samples = steps * job.microbatches * job.microbatch_size;
    std::printf("loss %.6f over %s samples, %s samples/s\n", evaluation.mean(),
                Grouped(static_cast<double>(samples)).c_str(),
                Grouped(static_cast<double>(samples) / (Now() - begin)).c_str());
    std::fflush(stdout);
    if (!job.metrics.empty()) {
      Json line = EvaluationJson(job, evaluation);
      line["samples"] = samples;
      std::ofstream out(job.metrics);
      out << line.dump() << "\n";
      if (!out) error = job.metrics + ": cannot be written";
    }
  }
  Vote(transport, "writing metrics", error);
}

}  // namespace pipewright
