#include "runtime/commands/train.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <cstdio>
#include <numeric>
#include <utility>

#include "base/error.h"
#include "base/files/read_file.h"
#include "base/json.h"
#include "base/process/messages.h"
#include "base/process/process_memory.h"
#include "base/text.h"
#include "formats/job_changes.h"
#include "formats/package/package_files.h"
#include "runtime/checkpoint/checkpoint.h"
#include "runtime/checkpoint/checkpoint_folder.h"
#include "runtime/checkpoint/final_weights.h"
#include "runtime/commands/run_trace.h"
#include "runtime/exec/clock.h"
#include "runtime/exec/phase.h"
#include "runtime/feed.h"
#include "runtime/output_locks.h"
#include "runtime/reports/offload_report.h"
#include "runtime/reports/progress.h"
#include "runtime/reports/step_reports.h"
#include "runtime/resume.h"
#include "runtime/watch/stop.h"
#include "runtime/weights.h"

namespace pipewright {

namespace {

void PrintStart(const Session& session) {
  const Transport& transport = session.transport;
  if (transport.rank() != 0) return;
  const Job& job = session.job;
  const int64_t least =
      job.minibatch_size > 0 ? job.minibatch_size / job.microbatches : job.microbatch_size;
  const std::string samples = (least < job.microbatch_size ? std::to_string(least) + " to " : "") +
                              std::to_string(job.microbatch_size);
  std::printf("%s, %s in %s, %s, %s of %s\n", Counted(transport.size(), "rank").c_str(),
              Counted(session.run.manifest.modules.size(), "module").c_str(),
              Counted(session.run.graph.stages, "stage").c_str(),
              job.plan.empty() ? job.schedule.c_str() : job.plan.c_str(),
              Counted(job.microbatches, "microbatch").c_str(), samples.c_str());
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

// Returns the checkpoint that the command line asks for; an empty one of step 0 to start anew.
RunCheckpoint ResumeAsAsked(const RunOptions& options, const CheckpointFolder& seen,
                            Session& session) {
  const std::string& folder = session.job.checkpoint.folder;
  const std::string from = options.resume ? folder : options.resume_from;
  Phase(session.transport, from.empty() ? "starting" : "resuming", [&] {
    if (options.resume && folder.empty())
      throw Error(session.job.path, "--resume: the job writes no checkpoints",
                  "add \"checkpoint\": {\"to\": \"FOLDER\", \"every\": STEPS}");
    const int rank = session.transport.rank();
    if (!from.empty() || folder.empty() || seen.first[rank] != rank) return;
    CheckHoldsNoCheckpoint(folder, session.job.path);
  });
  if (from.empty()) return {};
  RunCheckpoint checkpoint = session.Restore(from, !seen.shared());
  if (checkpoint.path.empty() && !options.resume)
    throw AgreedError(from + ": no complete checkpoint is there");
  return checkpoint;
}

// Returns the report of a step, whose terms begin at microbatch `first` of `terms`.
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

class Trainer {
 public:
  Trainer(const RunOptions& options, Transport& transport)
      : options_(options), transport_(transport), session_(transport), training_(*this) {}

  void Open() {
    ReadJobPhase(options_, false, session_);
    session_.Open(SessionOptionsOf(options_, true));
    OpenData();
    std::vector<Microbatches*> sources{&training_};
    if (job_.validation.every > 0) sources.push_back(&validation_);
    // Locks the folder before anything in it is read or removed.
    if (const std::string& folder = job_.checkpoint.folder; !folder.empty())
      folder_ = OpenCheckpointFolder(folder, job_.path + ": checkpoint.to",
                                     options_.resume || !options_.resume_from.empty(), transport_);
    session_.Load(sources, AgreedOptions(options_));
    resumed_ = ResumeAsAsked(options_, folder_, session_);
    training_.StartAt(resumed_.step * job_.accumulate, resumed_.data);
    session_.Start();
    OpenOutputs();
  }

  void Run() {
    PrintStart(session_);
    PrintData();
    const std::string checkpoints =
        checkpointer_ ? folder_.Describe(transport_.hosts()) : std::string();
    if (!checkpoints.empty() && transport_.rank() == 0) std::printf("%s\n", checkpoints.c_str());
    if (!resumed_.path.empty() && transport_.rank() == 0) PrintResumed();
    if (resumed_.step >= job_.steps && transport_.rank() == 0)
      std::printf(resumed_.step == job_.steps
                      ? "already at step %lld of %lld: nothing to train\n"
                      : "the checkpoint is at step %lld, and the run ends at step %lld: nothing to "
                        "train; give more \"steps\" to go on\n",
                  static_cast<long long>(resumed_.step), static_cast<long long>(job_.steps));
    if (transport_.rank() == 0)
      for (const std::string& warning : WarningsOfLoss(job_, session_.run.manifest))
        PrintWarning(warning);
    reports_ = std::make_unique<RankReports>(transport_, 0);
    steps_ = std::make_unique<StepReports>(job_, LossRank(session_), transport_);
    said_ = resumed_.step;
    StopAgreement stop(transport_);
    double busy = 0;
    transport_.AllGather("");  // ranks on other hosts have other clocks
    const double begin = told_at_ = begin_ = Now();
    for (step_ = resumed_.step; step_ < job_.steps && !stopped_; step_ = next_) {
      const double end = RunSteps();
      busy += session_.busy;
      // Asked to stop in the last step, the run is complete.
      stopped_ = stop.AfterStep() && next_ < job_.steps;
      SaveCheckpoint();
      Evaluation evaluation;
      const bool validates = Validate(evaluation);
      Tell(next_ - 1 - step_, session_.terms, validates ? &evaluation : nullptr, end);
      Say(0);
      if (checkpointer_ && !progress_) checkpointer_->Told(next_);
    }
    stop.Finish();
    reports_->Finish();
    Say(step_);
    steps_->Finish();
    if (progress_) progress_->Finish();
    training_.Finish();
    validation_.Finish();
    if (stopped_ && transport_.rank() == 0)
      std::printf("stopped after step %lld, as asked\n", static_cast<long long>(step_));
    PrintBusy(session_, busy, Now() - begin);
  }

  // Returns how many steps were run.
  int64_t steps() const { return step_ - resumed_.step; }

  void Save() {
    std::vector<std::string> failures;
    std::string checkpoint;  // the last step's
    if (checkpointer_) try {
        checkpointer_->Finish();
        checkpoint = job_.checkpoint.folder;
      } catch (const AgreedError& e) {
        failures.push_back(e.what());
        if (job_.save.empty())
          failures.back() += SaveElsewhere(session_, "weights.safetensors");
      }
    // A stopped run resumes from its checkpoint; without one, it saves at least the weights.
    if (!job_.save.empty() && !(stopped_ && !checkpoint.empty()))
      if (const std::string why = SaveFinalWeights(session_, checkpoint); !why.empty())
        failures.push_back(why);
    PrintKept(checkpoint);
    SaveGradients();
    if (!failures.empty()) throw AgreedError(failures);
    WriteTrace();
    Phase(transport_, "writing", [&] {
      const int64_t sweeps = (step_ - resumed_.step) * job_.accumulate + validated_;
      std::fputs(ReportOffload(session_, sweeps, options_.offload_report).c_str(), stdout);
    });
  }

 private:
  // Feeds the job's data. Of steps that run in a row, reports all but the last as they end.
  struct TrainingFeed : Feed {
    explicit TrainingFeed(Trainer& trainer) : trainer(trainer) {}
    void Stepped(int64_t steps) override {
      const Session& session = trainer.session_;
      if (steps < session.run.plan.steps)
        trainer.Tell(steps - 1, session.stages->terms(), nullptr, Now());
      trainer.Say(0);
    }
    Trainer& trainer;
  };

  void OpenData() {
    training_.Open(job_, job_.data, session_.run, job_.path + ": data", transport_);
    const bool resumes = !options_.resume_from.empty() ||  // its place is not known yet
                         (options_.resume && !ListCheckpoints(job_.checkpoint.folder).empty());
    training_.minibatches = resumes ? 0 : MinibatchesOf(job_);
    if (job_.validation.every == 0) return;
    validation_.Open(job_, job_.validation.data, session_.run, job_.path + ": validation.data",
                     transport_);
    const int64_t all = validation_.sampler->per_epoch();
    sweeps_ = job_.validation.steps ? std::min(job_.validation.steps, all) : all;
    if (job_.validation.every <= job_.steps) validation_.minibatches = sweeps_;
  }

  // Runs before the first step, so that a bad output does not fail only after the last.
  void OpenOutputs() {
    const std::string metrics = options_.metrics.empty() ? job_.path + ": metrics" : "--metrics";
    Phase(transport_, "opening outputs", [&] {
      const bool first = transport_.rank() == 0;
      OutputFiles outputs(ReadBy(options_, session_));
      const std::string save = options_.save.empty() ? job_.path + ": save" : "--save";
      outputs.Add(save, job_.save, first);
      outputs.Add("--save-gradients", options_.save_gradients, first);
      outputs.Add("--trace", options_.trace, first);
      outputs.Add(metrics, job_.metrics, first, /*in_place=*/true);
      outputs.Add("--offload-report", options_.offload_report, first);
      if (first) try {
          save_lock_ = LockFile(job_.save);
        } catch (const std::exception& e) {
          throw Error(save, e.what());
        }
    });
    std::unique_ptr<EventFile> events;
    Phase(transport_, "opening outputs", [&] {
      if (transport_.rank() == 0 && !job_.tensorboard.empty()) try {
          events = std::make_unique<EventFile>(job_.tensorboard, resumed_.step);
        } catch (const std::exception& e) {
          throw Error(job_.path + ": tensorboard", e.what());
        }
    });
    // Comes last, because it truncates the metrics file.
    Phase(transport_, "opening outputs", [&] {
      if (transport_.rank() == 0) try {
          progress_ = std::make_unique<Progress>(
              job_, job_.data.tokens.empty() ? "samples" : "tokens", resumed_.step,
              std::move(events));
        } catch (const std::exception& e) {
          throw Error(metrics, e.what());
        }
    });
    if (!job_.checkpoint.folder.empty())
      checkpointer_ = std::make_unique<Checkpointer>(session_, folder_);
  }

  // Runs one step, or several in a row. Returns when they ended.
  double RunSteps() {
    const bool asynchronous = IsAsynchronous(job_);
    next_ = step_ + (asynchronous ? StepsInARow(job_, step_) : 1);
    for (int64_t i = step_; progress_ && i < next_; ++i) steps_->Expect();
    const double first = start_ = Now();
    if (asynchronous)
      session_.Steps(training_, step_, next_ - step_);
    else
      StepOnce();
    const double end = Now();
    reports_->Add({session_.busy, end - first, static_cast<double>(ResidentBytes())});
    if (job_.check_shared)
      CheckSharedCopies(session_.run.manifest, session_.run.conf, *session_.stages,
                        session_.run.on_disk, transport_);
    return end;
  }

  void StepOnce() {
    try {
      session_.Step(training_, step_);
    } catch (...) {
      // After another error, the other ranks still compute, and would not take part.
      if (session_.told_not_finite) KeepStepsBefore();
      throw;
    }
  }

  // Called on every rank before NaN or infinity ends the run: reports the steps before, and
  // completes the checkpoint that is being written, which is of one of those steps.
  void KeepStepsBefore() {
    Say(step_);
    steps_->Finish();
    if (progress_) progress_->Finish();
    transport_.AllGather("");  // no rank ends the others before rank 0 has written
    if (checkpointer_) try {
        checkpointer_->Finish();
      } catch (const AgreedError& e) {
        if (transport_.rank() == 0)
          std::fputs(e.Shown("pipewright-run").c_str(), stderr);
      }
  }

  void SaveCheckpoint() {
    saving_ = -1;
    if (!checkpointer_) return;
    const DataPosition position = training_.sampler->Position(next_ * job_.accumulate);
    const int64_t every = job_.checkpoint.every;
    const bool due = stopped_ || next_ >= job_.steps || (every > 0 && next_ % every == 0);
    const double begin = Now();
    if (due) Say(step_);  // the previous checkpoint waits for the report of its step
    if (stopped_)
      checkpointer_->Save(next_, position);
    else
      checkpointer_->AfterStep(next_, position);
    if (due) saving_ = Now() - begin;
  }

  // Returns true if a validation was due.
  bool Validate(Evaluation& evaluation) {
    if (job_.validation.every == 0 || next_ % job_.validation.every != 0) return false;
    for (int64_t i = 0; i < sweeps_; ++i) session_.Evaluate(validation_, i, evaluation);
    validated_ += sweeps_;
    return true;
  }

  // On the rank with the losses: reports the i-th of the steps in a row to rank 0.
  void Tell(int64_t i, const LossTerms& terms, const Evaluation* validation, double end) {
    if (!session_.stages->has_losses()) return;
    StepReport report = ReportOf(session_, training_, step_ + i, terms,
                                 static_cast<size_t>(i) * job_.microbatches);
    report.seconds = end - std::exchange(start_, end);
    const double now = Now();
    report.elapsed = now - std::exchange(told_at_, now);
    report.validation = validation;
    if (step_ + i + 1 == next_) report.checkpoint = saving_;
    steps_->Send(report);
  }

  // On rank 0: prints the reports that have arrived, and waits for those of the first `steps`
  // steps.
  void Say(int64_t steps) {
    StepReport report;
    Evaluation validation;
    while (progress_ && steps_->Next(said_ < steps, report, validation)) {
      progress_->Step(report, reports_->newest());
      said_ = report.step + 1;
      if (checkpointer_) checkpointer_->Told(said_);
    }
  }

  void PrintData() const {
    if (transport_.rank() != 0) return;
    const std::string order = job_.data.shuffle
                                  ? "shuffled with seed " + std::to_string(job_.seed)
                                  : "in the order of the data";
    std::printf("%s, %s per epoch, %s\n", Counted(training_.data->samples(), "sample").c_str(),
                Counted(training_.sampler->per_epoch(), "minibatch").c_str(), order.c_str());
  }

  void PrintResumed() const {
    std::printf("resumed from %s\n", resumed_.path.c_str());
    const std::vector<std::string> changes = ChangedJobKeys(resumed_.job, job_.text);
    if (!changes.empty())
      std::printf("  %s has changed since then, and its new values are used: %s\n",
                  job_.path.c_str(), Join(changes, ", ").c_str());
    std::vector<std::string> others;
    for (const Found& found : session_.read) {
      const auto before = resumed_.read.find(found.key);
      if (before != resumed_.read.end() && before->second != found.what &&
          std::find(others.begin(), others.end(), found.name) == others.end())
        others.push_back(found.name);
    }
    if (options_.resume) WarnOfLater();
    if (!others.empty())
      PrintWarning("changed since " + resumed_.path + " was written: " + Join(others, ", ") +
                   ". The run uses the current files");
  }

  // Names the newest checkpoint that is not used, since `latest` names an earlier step.
  void WarnOfLater() const {
    const std::string& folder = job_.checkpoint.folder;
    const int64_t step = LatestStep(folder);
    if (step < 0) return;
    if (resumed_.step > step)
      return PrintWarning(resumed_.path + " is of a later step than " + folder +
                          "/latest names: a run that went back has left it behind, and no other "
                          "can be used");
    const std::string latest = CheckpointName(step);
    for (const std::string& path : ListCheckpoints(folder))
      if (path != resumed_.path && std::filesystem::path(path).filename().string() > latest)
        return PrintWarning(folder + "/latest names " + folder + "/" + latest + ", and " + path +
                            " is of a later step: to resume from that one, use --resume-from");
  }

  // Says what the run has kept, if that is not all that was asked for.
  void PrintKept(const std::string& checkpoint) const {
    if (transport_.rank() != 0) return;
    if (stopped_ && !checkpoint.empty())
      std::printf("checkpoint in %s: to continue, run the same command with --resume\n",
                  checkpoint.c_str());
    if (stopped_ && job_.checkpoint.folder.empty())
      std::printf("it cannot be resumed: the job writes no checkpoints\n");
    std::fflush(stdout);
    if (job_.save.empty() && job_.checkpoint.folder.empty())
      PrintWarning("the trained weights are lost: " + job_.path +
                   " has neither \"save\" nor \"checkpoint\"");
  }

  void SaveGradients() {
    if (options_.save_gradients.empty()) return;
    if (step_ > resumed_.step) return session_.SaveGradients(options_.save_gradients);
    if (transport_.rank() == 0)
      PrintWarning("--save-gradients: no step was run, so there are none to save");
  }

  // Writes what the ranks did in the last step, or in the last steps that ran in a row.
  void WriteTrace() {
    if (options_.trace.empty()) return;
    std::vector<TimedAction> events;
    AddEvents(session_.trace(), 0, begin_, events);
    std::vector<Json> all;
    for (const std::string& rank : transport_.AllGather(WriteEvents(events).dump()))
      all.push_back(ParseJson(rank, "trace"));
    Phase(transport_, "writing", [&] {
      if (transport_.rank() != 0) return;
      if (step_ > resumed_.step)
        WriteFile(options_.trace, ChromeTrace(session_.run.plan, ReadEvents(all)));
      else
        PrintWarning("--trace: no step was run");
    });
  }

  const RunOptions& options_;
  Transport& transport_;
  Session session_;
  const Job& job_ = session_.job;
  CheckpointFolder folder_;              // both are locked until all members below are gone
  std::unique_ptr<OwnerLock> save_lock_;
  TrainingFeed training_;
  Feed validation_;
  int64_t sweeps_ = 0;  // minibatches of a validation
  RunCheckpoint resumed_;
  std::unique_ptr<Progress> progress_;
  std::unique_ptr<RankReports> reports_;
  std::unique_ptr<StepReports> steps_;
  std::unique_ptr<Checkpointer> checkpointer_;
  int64_t step_ = 0;       // the one that runs, or the first of those in a row
  int64_t next_ = 0;       // the step after those
  int64_t said_ = 0;       // on rank 0: number of steps that are fully reported
  int64_t validated_ = 0;  // minibatches
  double begin_ = 0;       // the start of the first step, which all ranks began together
  double saving_ = -1;     // seconds spent waiting for a checkpoint; -1: none was due
  double start_ = 0;       // when the step that is reported next began
  double told_at_ = 0;     // when the previous step was reported
  bool stopped_ = false;
};

}  // namespace

int64_t Train(const RunOptions& options, Transport& transport) {
  Trainer trainer(options, transport);
  trainer.Open();
  trainer.Run();
  trainer.Save();
  return trainer.steps();
}

}  // namespace pipewright
