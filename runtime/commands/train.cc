#include "runtime/commands/train.h"

#include <ATen/ATen.h>
#include <ATen/Parallel.h>

#include <algorithm>
#include <cstdio>
#include <numeric>
#include <utility>

#include "base/error.h"
#include "base/json.h"
#include "base/text.h"
#include "formats/package/package_files.h"
#include "runtime/checkpoint.h"
#include "runtime/cpu/matmul.h"
#include "runtime/exec/clock.h"
#include "runtime/exec/phase.h"
#include "runtime/feed.h"
#include "runtime/offload_report.h"
#include "runtime/progress.h"
#include "runtime/resume.h"
#include "runtime/watch/stop.h"
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
void ReadJobPhase(const RunOptions& options, Session& session) {
  Phase(session.transport, "reading", [&] {
    session.job = ReadJobOf(options);
    at::set_num_threads(session.job.threads);
    UseMatMul(session.job.matmul, session.job.path + ": matmul");
    CheckOffload(options.offload_dir, options.offload_report, session.transport);
  });
}

std::vector<std::string> ReadBy(const RunOptions& options, const Session& session) {
  return RunFiles(options.package, session.run.manifest, session.job,
                  {options.weights, options.conf, options.device_map});
}

void PrintStart(const Session& session) {
  const Transport& transport = session.transport;
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

void PrintBusy(const Session& session, double busy, double total) {
  Transport& transport = session.transport;
  char line[64];
  std::snprintf(line, sizeof line, "%.1f", total > 0 ? 100 * busy / total : 0);
  std::vector<std::string> all = transport.AllGather(line);
  const std::string bodies = DescribeBodies(session);
  if (transport.rank() != 0) return;
  for (int rank = 0; rank < transport.size(); ++rank)
    std::printf("rank %d  busy %5s %%  %s\n", rank, all[rank].c_str(),
                Describe(session, rank).c_str());
  if (!bodies.empty()) std::printf("%s\n", bodies.c_str());
  std::fflush(stdout);
}

// The checkpoint that the command line asks for; one of step 0 where training starts anew.
RunCheckpoint ResumeAsAsked(const RunOptions& options, Session& session) {
  const std::string& folder = session.job.checkpoint.folder;
  const std::string from = options.resume ? folder : options.resume_from;
  Phase(session.transport, "resuming", [&] {
    if (options.resume && folder.empty())
      throw Error(session.job.path, "--resume: the job writes no checkpoints",
                  "add \"checkpoint\": {\"to\": \"FOLDER\", \"every\": STEPS}");
    if (!from.empty() || folder.empty() || session.transport.rank() != 0) return;
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
  RunCheckpoint checkpoint = session.Restore(from);
  if (checkpoint.path.empty() && !options.resume)
    throw AgreedError(from + ": no complete checkpoint is there");
  return checkpoint;
}

// `terms` from microbatch `first` on are the step's.
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
             feed.LossWeight(static_cast<int>(k), minibatch, microbatch);
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

SessionOptions Asked(const RunOptions& options, bool training) {
  SessionOptions asked;
  asked.package = options.package;
  asked.conf = options.conf;
  asked.weights = options.weights;
  asked.device_map = options.device_map;
  asked.training = training;
  asked.keep_gradients = !options.save_gradients.empty();
  return asked;
}

class Trainer {
 public:
  Trainer(const RunOptions& options, Transport& transport)
      : options_(options), transport_(transport), session_(transport), training_(*this) {}

  void Open() {
    ReadJobPhase(options_, session_);
    session_.Open(Asked(options_, true));
    OpenData();
    std::vector<Microbatches*> sources{&training_};
    if (job_.validation.every > 0) sources.push_back(&validation_);
    session_.Load(sources, AgreedOptions(options_));
    resumed_ = ResumeAsAsked(options_, session_);
    training_.sampler->StartAt(resumed_.step * job_.accumulate, resumed_.data);
    session_.Start();
    OpenOutputs();
  }

  void Run() {
    PrintStart(session_);
    if (!resumed_.path.empty() && transport_.rank() == 0)
      std::printf("resumed from %s\n", resumed_.path.c_str());
    if (resumed_.step >= job_.steps && transport_.rank() == 0)
      std::printf("already at step %lld of %lld: nothing to train\n",
                  static_cast<long long>(resumed_.step), static_cast<long long>(job_.steps));
    const int stage = session_.stages->loss_stages()[0];
    reports_ =
        std::make_unique<RankReports>(transport_, session_.run.conf.stage_to_ranks[stage][0]);
    StopAgreement stop(transport_);
    double busy = 0, begin = Now();
    for (step_ = resumed_.step; step_ < job_.steps && !stopped_; step_ = next_) {
      const double end = RunSteps();
      busy += session_.busy;
      stopped_ = stop.AfterStep();
      SaveCheckpoint();
      Evaluation evaluation;
      const bool validates = Validate(evaluation);
      Tell(next_ - 1 - step_, session_.terms, validates ? &evaluation : nullptr, end);
    }
    stop.Finish();
    reports_->Finish();
    training_.Finish();
    validation_.Finish();
    if (stopped_ && transport_.rank() == 0)
      std::printf("stopped after step %lld, as asked\n", static_cast<long long>(step_));
    PrintBusy(session_, busy, Now() - begin);
  }

  void Save() {
    if (checkpointer_) checkpointer_->Finish();
    // What a run that was stopped goes on from is its checkpoint; without one, at least the weights
    // remain.
    if (!job_.save.empty() && !(stopped_ && checkpointer_)) {
      session_.Save(job_.save);
      if (transport_.rank() == 0) std::printf("weights saved in %s\n", job_.save.c_str());
    }
    if (!options_.save_gradients.empty()) session_.SaveGradients(options_.save_gradients);
    Phase(transport_, "writing", [&] {
      const int64_t sweeps = (step_ - resumed_.step) * job_.accumulate + validated_;
      std::fputs(ReportOffload(session_, sweeps, options_.offload_report).c_str(), stdout);
    });
  }

 private:
  // The job's data. Of steps that run in a row, all but the last are told as they end.
  struct TrainingFeed : Feed {
    explicit TrainingFeed(Trainer& trainer) : trainer(trainer) {}
    void Stepped(int64_t steps) override {
      const Session& session = trainer.session_;
      if (steps < session.run.plan.steps)
        trainer.Tell(steps - 1, session.stages->terms(), nullptr, Now());
    }
    Trainer& trainer;
  };

  void OpenData() {
    training_.Open(job_, job_.data, session_.run, job_.path + ": data", transport_);
    if (job_.validation.every == 0) return;
    validation_.Open(job_, job_.validation.data, session_.run, job_.path + ": validation.data",
                     transport_);
    const int64_t all = validation_.sampler->per_epoch();
    sweeps_ = job_.validation.steps ? std::min(job_.validation.steps, all) : all;
  }

  // Now, and not after the last step.
  void OpenOutputs() {
    const std::string metrics = options_.metrics.empty() ? job_.path + ": metrics" : "--metrics";
    Phase(transport_, "opening outputs", [&] {
      const bool first = transport_.rank() == 0;
      OutputFiles outputs(ReadBy(options_, session_));
      outputs.Add(options_.save.empty() ? job_.path + ": save" : "--save", job_.save, first);
      outputs.Add("--save-gradients", options_.save_gradients, first);
      // A run that is resumed writes those anew that it goes on from.
      outputs.Add(metrics, job_.metrics, session_.stages->has_losses(), resumed_.step == 0);
      outputs.Add("--offload-report", options_.offload_report, first);
    });
    Phase(transport_, "opening outputs", [&] {
      if (session_.stages->has_losses()) try {
          progress_ = std::make_unique<Progress>(
              job_, job_.data.tokens.empty() ? "samples" : "tokens", resumed_.step);
        } catch (const std::exception& e) {
          throw Error(metrics, e.what());
        }
    });
    if (!job_.checkpoint.folder.empty()) checkpointer_ = std::make_unique<Checkpointer>(session_);
  }

  // One step, or those that run in a row. Returns when they ended.
  double RunSteps() {
    const bool asynchronous = IsAsynchronous(job_);
    next_ = step_ + (asynchronous ? StepsInARow(job_, step_) : 1);
    const double first = start_ = Now();
    if (asynchronous)
      session_.Steps(training_, step_, next_ - step_);
    else
      session_.Step(training_, step_);
    const double end = Now();
    reports_->Add({session_.busy, end - first, ResidentBytes()});
    if (job_.check_shared)
      CheckSharedCopies(session_.run.manifest, session_.run.conf, *session_.stages,
                        session_.run.on_disk, transport_);
    return end;
  }

  void SaveCheckpoint() {
    saving_ = -1;
    if (!checkpointer_) return;
    const DataPosition position = training_.sampler->Position(next_ * job_.accumulate);
    const int64_t every = job_.checkpoint.every;
    const bool due = stopped_ || next_ >= job_.steps || (every > 0 && next_ % every == 0);
    const double begin = Now();
    if (stopped_)
      checkpointer_->Save(next_, position);
    else
      checkpointer_->AfterStep(next_, position);
    if (due) saving_ = Now() - begin;
  }

  // Returns whether a validation was due.
  bool Validate(Evaluation& evaluation) {
    if (job_.validation.every == 0 || next_ % job_.validation.every != 0) return false;
    for (int64_t i = 0; i < sweeps_; ++i) session_.Evaluate(validation_, i, evaluation);
    validated_ += sweeps_;
    return true;
  }

  // Tells of the i-th of the steps that run in a row.
  void Tell(int64_t i, const LossTerms& terms, const Evaluation* validation, double end) {
    if (!progress_) return;
    StepReport report = ReportOf(session_, training_, step_ + i, terms,
                                 static_cast<size_t>(i) * job_.microbatches);
    report.seconds = end - std::exchange(start_, end);
    report.validation = validation;
    if (step_ + i + 1 == next_) report.checkpoint = saving_;
    progress_->Step(report, reports_->newest());
  }

  const RunOptions& options_;
  Transport& transport_;
  Session session_;
  const Job& job_ = session_.job;
  TrainingFeed training_;
  Feed validation_;
  int64_t sweeps_ = 0;  // minibatches of a validation
  RunCheckpoint resumed_;
  std::unique_ptr<Progress> progress_;
  std::unique_ptr<RankReports> reports_;
  std::unique_ptr<Checkpointer> checkpointer_;
  int64_t step_ = 0;       // that runs, or the first of those that run in a row
  int64_t next_ = 0;       // the step after those
  int64_t validated_ = 0;  // minibatches
  double saving_ = -1;     // seconds that they waited for a checkpoint; -1: none was due
  double start_ = 0;       // when what is told next began
  bool stopped_ = false;
};

// What `eval` says of the samples that it has seen; null on ranks without losses.
Json ReportEvaluation(const RunOptions& options, const Session& session, const Feed& feed,
                      int64_t steps, const Evaluation& evaluation, double seconds) {
  if (!session.stages->has_losses() || steps == 0) return {};
  const Job& job = session.job;
  int64_t samples = 0;
  for (int64_t step = 0; step < steps; ++step) samples += feed.sampler->Samples(step);
  std::string accuracy;
  if (job.losses[0].kind == LossJob::kCrossEntropy && evaluation.known())
    accuracy = AccuracyText(evaluation);
  const int64_t all = options.steps >= 0 ? samples : feed.data->samples();
  std::printf("loss %.6f%s over %s%s samples, %s samples/s\n", evaluation.mean(),
              accuracy.c_str(), Grouped(static_cast<double>(samples)).c_str(),
              samples < all ? (" of " + Grouped(static_cast<double>(all))).c_str() : "",
              Grouped(static_cast<double>(samples) / seconds).c_str());
  if (samples < all)
    std::printf(
        "  the rest fill no minibatch: with \"partial\" in the job they make a smaller one\n");
  std::fflush(stdout);
  Json report = EvaluationJson(job, evaluation);
  report["samples"] = samples;
  return report;
}

}  // namespace

AgreedFields AgreedOptions(const RunOptions& options) {
  // All are named, so that one that is added must be thought of here.
  const auto& [package, job, conf, weights, steps, schedule, save, metrics, save_gradients, resume,
               resume_from, input, output, microbatches, threads, matmul, on_request, device_map,
               offload_dir, offload_report] = options;
  return {{"weights", weights},
          {"steps", std::to_string(steps)},
          {"schedule", schedule},
          {"save", save},
          {"metrics", metrics},
          {"save_gradients", save_gradients},
          {"resume", std::to_string(resume)},
          {"resume_from", resume_from},
          {"input", input},
          {"output", output},
          {"microbatches", std::to_string(microbatches)},
          {"matmul", std::to_string(static_cast<int>(matmul))},
          {"on_request", std::to_string(on_request)},
          {"device_map", device_map}};
}

void Train(const RunOptions& options, Transport& transport) {
  Trainer trainer(options, transport);
  trainer.Open();
  trainer.Run();
  trainer.Save();
}

void Evaluate(const RunOptions& options, Transport& transport) {
  Session session(transport);
  ReadJobPhase(options, session);
  const Job& job = session.job;
  session.Open(Asked(options, false));
  Feed feed;
  feed.Open(job, job.data, session.run, job.path + ": data", transport);
  session.Load({&feed}, AgreedOptions(options));
  session.Start();
  Phase(transport, "opening outputs", [&] {
    OutputFiles outputs(ReadBy(options, session));
    outputs.Add("--metrics", options.metrics, session.stages->has_losses());
    outputs.Add("--offload-report", options.offload_report, transport.rank() == 0);
  });
  const int64_t steps = options.steps >= 0 ? options.steps : feed.sampler->per_epoch();
  Evaluation evaluation;
  const double begin = Now();
  for (int64_t step = 0; step < steps; ++step) session.Evaluate(feed, step, evaluation);
  feed.Finish();
  const Json report = ReportEvaluation(options, session, feed, steps, evaluation, Now() - begin);
  Phase(transport, "writing metrics", [&] {
    std::fputs(ReportOffload(session, steps, options.offload_report).c_str(), stdout);
    // Not into the job's own: they are those of its training.
    if (report.is_null() || options.metrics.empty()) return;
    try {
      WriteFile(job.metrics, report.dump() + "\n");
    } catch (const std::exception& e) {
      throw Error("--metrics", e.what());
    }
  });
}

}  // namespace pipewright
