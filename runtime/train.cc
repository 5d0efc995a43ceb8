#include "runtime/train.h"

#include <ATen/ATen.h>
#include <ATen/Parallel.h>

#include <algorithm>
#include <cstdio>
#include <numeric>
#include <utility>

#include "plan/error.h"
#include "plan/json.h"
#include "plan/package_files.h"
#include "plan/text.h"
#include "runtime/checkpoint.h"
#include "runtime/exec/clock.h"
#include "runtime/exec/phase.h"
#include "runtime/exec/stop.h"
#include "runtime/feed.h"
#include "runtime/matmul.h"
#include "runtime/offload_report.h"
#include "runtime/progress.h"
#include "runtime/resume.h"
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

// Reading the job is a phase of its own, because everything else depends on it.
void ReadJobPhase(const RunOptions& options, Session& session, Transport& transport) {
  Phase(transport, "reading", [&] {
    session.job = ReadJobOf(options);
    at::set_num_threads(session.job.threads);
    UseMatMul(session.job.matmul, session.job.path + ": matmul");
    CheckOffload(options.offload_dir, options.offload_report, transport);
  });
}

std::vector<std::string> ReadBy(const RunOptions& options, const Session& session) {
  return RunFiles(options.package, session.run.manifest, session.job,
                  {options.weights, options.conf, options.device_map});
}

void PrintStart(const Session& session, const Transport& transport) {
  if (transport.rank() != 0) return;
  const Job& job = session.job;
  std::printf("%s, %s in %s, %s, %s of %lld\n", Counted(transport.size(), "rank").c_str(),
              Counted(session.run.manifest.modules.size(), "module").c_str(),
              Counted(session.run.graph.stages, "stage").c_str(),
              job.plan.empty() ? job.schedule.c_str() : job.plan.c_str(),
              Counted(job.microbatches, "microbatch").c_str(),
              static_cast<long long>(job.microbatch_size));
  if (!transport.hosts().empty()) std::printf("%s\n", HostsText(transport.hosts()).c_str());
  std::fflush(stdout);
}

void PrintBusy(const Session& session, Transport& transport, double busy, double total) {
  char line[64];
  std::snprintf(line, sizeof line, "%.1f", total > 0 ? 100 * busy / total : 0);
  std::vector<std::string> all = transport.AllGather(line);
  const std::string bodies = DescribeBodies(session, transport);
  if (transport.rank() != 0) return;
  for (int rank = 0; rank < transport.size(); ++rank)
    std::printf("rank %d  busy %5s %%  %s\n", rank, all[rank].c_str(),
                Describe(session, rank).c_str());
  if (!bodies.empty()) std::printf("%s\n", bodies.c_str());
  std::fflush(stdout);
}

// Resumes from the checkpoint that the command line names. Returns one of step 0 if training starts
// from scratch.
RunCheckpoint ResumeAsAsked(const RunOptions& options, Session& session, Transport& transport) {
  const std::string& folder = session.job.checkpoint.folder;
  const std::string from = options.resume ? folder : options.resume_from;
  Phase(transport, "resuming", [&] {
    if (options.resume && folder.empty())
      throw Error(session.job.path, "--resume: the job writes no checkpoints",
                  "add \"checkpoint\": {\"to\": \"FOLDER\", \"every\": STEPS}");
    if (!from.empty() || folder.empty() || transport.rank() != 0) return;
    const std::vector<std::string> there = ListCheckpoints(folder);
    const std::vector<std::string> incomplete = IncompleteCheckpoints(folder, true);
    if (!there.empty())
      throw Error(folder, "holds checkpoints already, up to " + there[0],
                  "--resume goes on from it; to start anew, remove them or name another folder");
    if (!incomplete.empty())
      throw Error(folder, "holds what is left of checkpoints\n  " + Join(incomplete, "\n  "),
                  "to start anew, remove them or name another folder");
  });
  if (from.empty()) return {};
  RunCheckpoint checkpoint = Resume(from, session, transport);
  if (checkpoint.path.empty() && !options.resume)
    throw AgreedError(from + ": no complete checkpoint is there");
  return checkpoint;
}

// A rank's data for training and for validation.
struct Feeds {
  Feed training, validation;
  int64_t sweeps = 0;  // minibatches of one validation

  void Open(const Session& session, Transport& transport) {
    const Job& job = session.job;
    training.Open(job, job.data, session.run, job.path + ": data", transport);
    if (job.validation.every == 0) return;
    validation.Open(job, job.validation.data, session.run, job.path + ": validation.data",
                    transport);
    int64_t all = validation.sampler->per_epoch();
    sweeps = job.validation.steps ? std::min(job.validation.steps, all) : all;
  }
};

// The step's losses are `terms` from microbatch `first` on.
StepReport ReportOf(Session& session, Feed& feed, int64_t step, const LossTerms& terms,
                    size_t first) {
  const Job& job = session.job;
  const size_t count = static_cast<size_t>(job.accumulate) * job.microbatches;
  StepReport report;
  report.step = step;
  for (size_t i = 0; i < count; ++i) report.losses.push_back(TotalLoss(job, terms, first + i));
  LossTerm hits;
  for (size_t k = 0; k < terms.size(); ++k) {
    double sum = 0;
    for (size_t i = 0; i < count; ++i) {
      const int microbatch = static_cast<int>(i) % job.microbatches;
      const int64_t minibatch = step * job.accumulate + static_cast<int64_t>(i) / job.microbatches;
      sum += terms[k][first + i].loss *
             feed.LossWeight(job, static_cast<int>(k), minibatch, microbatch);
      if (k == 0) hits.count += terms[k][first + i].count;
      if (k == 0) hits.correct += terms[k][first + i].correct;
    }
    report.terms.push_back(PlainNan(sum / static_cast<double>(count)));
    report.loss = PlainNan(report.loss + job.losses[k].weight * report.terms.back());
  }
  if (terms.size() == 1) report.terms.clear();
  for (int64_t b = step * job.accumulate; b < (step + 1) * job.accumulate; ++b)
    report.counted += feed.sampler->Samples(b) * feed.data->tokens_per_sample();
  report.learning_rate = session.stages->updater().learning_rate();
  report.outcome = session.outcome;
  if (job.loss_scale.used) report.loss_scale = session.loss_scale;
  if (job.accuracy && hits.count)
    report.accuracy = static_cast<double>(hits.correct) / static_cast<double>(hits.count);
  return report;
}

}  // namespace

std::string AgreedText(const RunOptions& options) {
  return Join(
      {options.weights, std::to_string(options.steps), options.schedule, options.save,
       options.metrics, options.save_gradients, options.resume ? "resume" : "", options.resume_from,
       options.input, options.output, std::to_string(options.microbatches), options.device_map,
       std::to_string(static_cast<int>(options.matmul))},
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
  open.device_map = options.device_map;
  open.keep_gradients = !options.save_gradients.empty();
  open.loss_weight = [&](int loss, int64_t minibatch, int microbatch) {
    return session.evaluating ? 1 : feeds.training.LossWeight(job, loss, minibatch, microbatch);
  };
  open.target_name = [&](int loss) {
    return (session.evaluating ? feeds.validation : feeds.training).data->TargetName(loss);
  };
  std::unique_ptr<Progress> progress;
  std::unique_ptr<RankReports> reports;
  int64_t step = 0;    // the running step, or the first of several in a row
  int64_t next = 0;    // the step after those
  double saving = -1;  // seconds spent waiting for a checkpoint; -1: none was due
  double start = 0;    // start of the period that is reported next
  // Reports the i-th of the steps that run in a row.
  auto tell = [&](int64_t i, const LossTerms& terms, const Evaluation* validation, double end) {
    if (!progress) return;
    StepReport report = ReportOf(session, feeds.training, step + i, terms,
                                 static_cast<size_t>(i) * job.microbatches);
    report.seconds = end - std::exchange(start, end);
    report.validation = validation;
    if (step + i + 1 == next) report.checkpoint = saving;
    progress->Step(report, reports->newest());
  };
  // Reports all but the last, which the loop below reports.
  open.stepped = [&](int64_t steps) {
    if (steps < session.run.plan.steps) tell(steps - 1, session.stages->terms(), nullptr, Now());
  };
  open.read_data = [&](Session&) { feeds.Open(session, transport); };
  open.fed = [&](Session&) {
    std::vector<Fed> fed{feeds.training.First(job, session.run.manifest)};
    if (job.validation.every > 0) fed.push_back(feeds.validation.First(job, session.run.manifest));
    return fed;
  };
  open.restore = [&](Session&) {
    resumed = ResumeAsAsked(options, session, transport);
    feeds.training.sampler->StartAt(resumed.step * job.accumulate, resumed.data);
    return resumed.step;
  };
  OpenSession(
      session, open, transport,
      [&](int64_t minibatch, int microbatch) {
        return (session.evaluating ? feeds.validation : feeds.training)
            .Specs(session.run.manifest, minibatch, microbatch);
      },
      [&](int input, int64_t minibatch, int microbatch) {
        Feed& feed = session.evaluating ? feeds.validation : feeds.training;
        return feed.sampler->Microbatch(input, minibatch, microbatch);
      });
  const std::string metrics = options.metrics.empty() ? job.path + ": metrics" : "--metrics";
  Phase(transport, "opening outputs", [&] {  // not after the last step
    const bool first = transport.rank() == 0;
    OutputFiles outputs(ReadBy(options, session));
    outputs.Add(options.save.empty() ? job.path + ": save" : "--save", job.save, first);
    outputs.Add("--save-gradients", options.save_gradients, first);
    // A resumed run may replace the files that it continues.
    outputs.Add(metrics, job.metrics, session.stages->has_losses(), resumed.step == 0);
    outputs.Add("--offload-report", options.offload_report, first);
  });
  Phase(transport, "opening outputs", [&] {
    if (session.stages->has_losses()) try {
        progress = std::make_unique<Progress>(job, job.data.tokens.empty() ? "samples" : "tokens",
                                              resumed.step);
      } catch (const std::exception& e) {
        throw Error(metrics, e.what());
      }
  });
  std::unique_ptr<Checkpointer> checkpointer;
  if (!job.checkpoint.folder.empty())
    checkpointer = std::make_unique<Checkpointer>(session, transport);
  PrintStart(session, transport);
  if (!resumed.path.empty() && transport.rank() == 0)
    std::printf("resumed from %s\n", resumed.path.c_str());
  if (resumed.step >= job.steps && transport.rank() == 0)
    std::printf("already at step %lld of %lld: nothing to train\n",
                static_cast<long long>(resumed.step), static_cast<long long>(job.steps));

  reports = std::make_unique<RankReports>(
      transport, session.run.conf.stage_to_ranks[session.stages->loss_stages()[0]][0]);
  StopAgreement stop(transport);
  bool stopped = false;
  double busy = 0, begin = Now();
  int64_t validated = 0;  // minibatches
  const bool asynchronous = IsAsynchronous(job);
  step = resumed.step;
  for (; step < job.steps && !stopped; step = next) {
    next = step + (asynchronous ? StepsInARow(job, step) : 1);
    const double first = start = Now();
    if (asynchronous)
      RunSteps(session, transport, step, next - step);
    else
      RunStep(session, transport, step);
    busy += session.busy;
    const double end = Now();
    reports->Add({session.busy, end - first, ResidentBytes()});
    if (job.check_shared)
      CheckSharedCopies(session.run.manifest, session.run.conf, *session.stages,
                        session.run.on_disk, transport);
    stopped = stop.AfterStep();
    DataPosition position = feeds.training.sampler->Position(next * job.accumulate);
    const int64_t every = job.checkpoint.every;
    saving = checkpointer && (stopped || next >= job.steps || (every > 0 && next % every == 0))
                 ? Now()
                 : -1;
    if (checkpointer && stopped)
      checkpointer->Save(next, position);
    else if (checkpointer)
      checkpointer->AfterStep(next, position);
    if (saving >= 0) saving = Now() - saving;
    Evaluation validation;
    const bool validate = job.validation.every > 0 && next % job.validation.every == 0;
    for (int64_t i = 0; validate && i < feeds.sweeps; ++i) RunSweep(session, i, validation);
    validated += validate ? feeds.sweeps : 0;
    tell(next - 1 - step, session.terms, validate ? &validation : nullptr, end);
  }
  stop.Finish();
  reports->Finish();
  feeds.training.Finish();
  feeds.validation.Finish();
  if (stopped && transport.rank() == 0)
    std::printf("stopped after step %lld, as asked\n", static_cast<long long>(step));
  PrintBusy(session, transport, busy, Now() - begin);
  if (checkpointer) checkpointer->Finish();
  // A stopped run resumes from its checkpoint; without one, at least the weights are saved.
  if (!job.save.empty() && !(stopped && checkpointer)) {
    SaveWeights(job.save, session.run.manifest, session.run.conf, *session.stages, transport);
    if (transport.rank() == 0) std::printf("weights saved in %s\n", job.save.c_str());
  }
  if (!options.save_gradients.empty())
    SaveGradients(options.save_gradients, session.run.manifest, session.run.conf, *session.stages,
                  transport);
  Phase(transport, "writing", [&] {
    const int64_t sweeps = (step - resumed.step) * job.accumulate + validated;
    std::fputs(ReportOffload(session, transport, sweeps, options.offload_report).c_str(), stdout);
  });
}

void Evaluate(const RunOptions& options, Transport& transport) {
  Session session;
  ReadJobPhase(options, session, transport);
  const Job& job = session.job;
  Feed feed;
  SessionOptions open{options.package, options.conf, options.weights};
  open.agreed = AgreedText(options);
  open.device_map = options.device_map;
  open.training = false;
  open.target_name = [&](int loss) { return feed.data->TargetName(loss); };
  open.read_data = [&](Session&) {
    feed.Open(job, job.data, session.run, job.path + ": data", transport);
  };
  open.fed = [&](Session&) { return std::vector<Fed>{feed.First(job, session.run.manifest)}; };
  OpenSession(
      session, open, transport,
      [&](int64_t minibatch, int microbatch) {
        return feed.Specs(session.run.manifest, minibatch, microbatch);
      },
      [&](int input, int64_t minibatch, int microbatch) {
        return feed.sampler->Microbatch(input, minibatch, microbatch);
      });
  Phase(transport, "opening outputs", [&] {
    OutputFiles outputs(ReadBy(options, session));
    outputs.Add("--metrics", options.metrics, session.stages->has_losses());
    outputs.Add("--offload-report", options.offload_report, transport.rank() == 0);
  });
  int64_t steps = options.steps >= 0 ? options.steps : feed.sampler->per_epoch();
  Evaluation evaluation;
  double begin = Now();
  for (int64_t step = 0; step < steps; ++step) RunSweep(session, step, evaluation);
  feed.Finish();
  Json line;
  if (session.stages->has_losses() && steps > 0) {
    int64_t samples = 0;
    for (int64_t step = 0; step < steps; ++step) samples += feed.sampler->Samples(step);
    std::string accuracy;
    if (job.losses[0].kind == LossJob::kCrossEntropy && evaluation.known())
      accuracy = AccuracyText(evaluation);
    const int64_t all = options.steps >= 0 ? samples : feed.data->samples();
    std::printf("loss %.6f%s over %s%s samples, %s samples/s\n", evaluation.mean(),
                accuracy.c_str(), Grouped(static_cast<double>(samples)).c_str(),
                samples < all ? (" of " + Grouped(static_cast<double>(all))).c_str() : "",
                Grouped(static_cast<double>(samples) / (Now() - begin)).c_str());
    if (samples < all)
      std::printf(
          "  the rest fill no minibatch: with \"partial\" in the job they make a smaller one\n");
    std::fflush(stdout);
    line = EvaluationJson(job, evaluation);
    line["samples"] = samples;
  }
  Phase(transport, "writing metrics", [&] {
    std::fputs(ReportOffload(session, transport, steps, options.offload_report).c_str(), stdout);
    // Not into the job's own: they are those of its training.
    if (line.is_null() || options.metrics.empty()) return;
    try {
      WriteFile(job.metrics, line.dump() + "\n");
    } catch (const std::exception& e) {
      throw Error("--metrics", e.what());
    }
  });
}

}  // namespace pipewright
