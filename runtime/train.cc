#include "runtime/train.h"

#include <ATen/ATen.h>
#include <ATen/Parallel.h>

#include <chrono>
#include <cmath>
#include <cstdio>
#include <fstream>
#include <numeric>

#include "plan/atomic_file.h"
#include "plan/error.h"
#include "plan/json.h"
#include "plan/text.h"
#include "runtime/checkpoint.h"
#include "runtime/exec/stop.h"
#include "runtime/weights.h"

namespace pipewright {

namespace {

double Now() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

bool IsCompute(ActionKind kind) {
  return kind <= ActionKind::kOverlap || kind == ActionKind::kStep;
}

// 12345.6 -> "12,346"
std::string Grouped(double number) {
  std::string digits = std::to_string(std::llround(number));
  for (int64_t at = static_cast<int64_t>(digits.size()) - 3; at > 0; at -= 3)
    digits.insert(at, ",");
  return digits;
}

// The job as the command line changed it, and its data.
struct Feed {
  std::unique_ptr<Data> data;
  std::unique_ptr<Sampler> sampler;
  int64_t step = 0;

  std::vector<TensorSpec> Open(const Job& job, const Manifest& manifest) {
    data = OpenData(job, manifest);
    sampler = std::make_unique<Sampler>(job, *data);
    std::vector<TensorSpec> specs;
    for (size_t i = 0; i < manifest.inputs.size(); ++i) {
      at::Tensor example = sampler->Microbatch(static_cast<int>(i), 0, 0);
      specs.push_back({example.scalar_type(), example.sizes().vec(), true});
    }
    return specs;
  }
};

Job ReadJobOf(const RunOptions& options) {
  Job job = ReadJob(options.job);
  if (options.steps >= 0) job.steps = options.steps;
  if (!options.schedule.empty()) job.schedule = options.schedule;
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

double Mean(const std::vector<double>& losses) {
  return std::accumulate(losses.begin(), losses.end(), 0.0) / static_cast<double>(losses.size());
}

// Of a run that is resumed, the lines of the steps that it does not repeat.
void KeepMetrics(const std::string& path, int64_t steps) {
  std::ifstream in(path);
  std::string kept;
  for (std::string line; std::getline(in, line);) {
    nlohmann::json entry = nlohmann::json::parse(line, nullptr, /*allow_exceptions=*/false);
    if (entry.is_object() && entry.value("step", steps + 1) <= steps) kept += line + "\n";
  }
  WriteFile(path, kept);
}

// One JSON line a step, and a line for people now and then; both on the rank that has the loss.
class Progress {
 public:
  Progress(const Job& job, int64_t tokens_per_step, const char* unit, int64_t first_step)
      : job_(job),
        tokens_(tokens_per_step),
        unit_(unit),
        since_(Now()),
        logged_(first_step - 1),
        first_(first_step) {
    if (job.metrics.empty()) return;
    if (first_step > 0) KeepMetrics(job.metrics, first_step);
    metrics_.open(job.metrics, first_step > 0 ? std::ios::app : std::ios::trunc);
    if (!metrics_) throw Error(job.metrics, "cannot be written");
  }
  void Step(int64_t step, const std::vector<double>& losses, double seconds) {
    if (metrics_.is_open()) {
      Json line{{"step", step + 1},
                {"loss", Mean(losses)},
                {"losses", losses},
                {std::string(unit_) + "_per_second", static_cast<double>(tokens_) / seconds}};
      metrics_ << line.dump() << std::endl;
      if (!metrics_) throw Error(job_.metrics, "cannot be written any more");
    }
    bool last = step + 1 == job_.steps;
    if (step != first_ && (step + 1) % job_.log_every != 0 && !last) return;
    double now = Now();
    double rate = static_cast<double>(tokens_ * (step - logged_)) / (now - since_);
    std::printf("step %6lld/%lld  loss %.4f  %s %s/s\n", static_cast<long long>(step + 1),
                static_cast<long long>(job_.steps), Mean(losses), Grouped(rate).c_str(), unit_);
    std::fflush(stdout);
    logged_ = step;
    since_ = now;
  }

 private:
  const Job& job_;
  int64_t tokens_;
  const char* unit_;
  std::ofstream metrics_;
  double since_;
  int64_t logged_, first_;
};

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

}  // namespace

std::string AgreedText(const RunOptions& options) {
  return Join(
      {options.weights, std::to_string(options.steps), options.schedule, options.save,
       options.metrics, options.save_gradients, options.resume ? "resume" : "", options.resume_from,
       options.input, options.output, std::to_string(options.microbatches)},
      "\n");
}

void Train(const RunOptions& options, Transport& transport) {
  Session session;
  ReadJobPhase(options, session, transport);
  const Job& job = session.job;
  Feed feed;
  RunCheckpoint resumed;
  SessionOptions open{options.package, options.conf, options.weights};
  open.agreed = AgreedText(options);
  open.keep_gradients = !options.save_gradients.empty();
  open.restore = [&](Session&) {
    resumed = ResumeAsAsked(options, session, transport);
    feed.sampler->StartAt(resumed.step, resumed.data);
    return resumed.step;
  };
  std::unique_ptr<Progress> progress;
  OpenSession(
      session, open, transport, [&] { return feed.Open(job, session.run.manifest); },
      [&](int input, int microbatch) {
        return feed.sampler->Microbatch(input, feed.step, microbatch);
      });
  std::string error;
  try {
    // Not after the last step.
    for (const std::string& file : {job.save, options.save_gradients})
      if (transport.rank() == 0 && !file.empty()) CheckWritable(file);
    bool tokens = !job.data.tokens.empty();
    if (session.stages->computes_loss())
      progress = std::make_unique<Progress>(
          job, job.microbatches * job.microbatch_size * feed.data->tokens_per_sample(),
          tokens ? "tokens" : "samples", resumed.step);
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

  StopAgreement stop(transport);
  bool stopped = false;
  double busy = 0, begin = Now();
  for (feed.step = resumed.step; feed.step < job.steps && !stopped; ++feed.step) {
    double start = Now();
    RunStep(session, feed.step);
    for (const TraceEvent& event : session.executor->trace())
      if (IsCompute(event.action.kind)) busy += event.end - event.start - event.waited;
    if (progress) progress->Step(feed.step, session.stages->losses(), Now() - start);
    if (job.check_shared)
      CheckSharedCopies(session.run.manifest, session.run.conf, *session.stages, transport);
    stopped = stop.AfterStep();
    DataPosition next = feed.sampler->Position(feed.step + 1);
    if (checkpointer && stopped)
      checkpointer->Save(feed.step + 1, next);
    else if (checkpointer)
      checkpointer->AfterStep(feed.step + 1, next);
  }
  stop.Finish();
  if (stopped && transport.rank() == 0)
    std::printf("stopped after step %lld, as asked\n", static_cast<long long>(feed.step));
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
      session, open, transport, [&] { return feed.Open(job, session.run.manifest); },
      [&](int input, int microbatch) {
        return feed.sampler->Microbatch(input, feed.step, microbatch);
      });
  int64_t minibatch = job.microbatches * job.microbatch_size;
  int64_t steps = options.steps >= 0 ? options.steps : feed.data->samples() / minibatch;
  std::vector<double> losses;
  double begin = Now();
  for (feed.step = 0; feed.step < steps; ++feed.step) {
    RunStep(session, feed.step);
    losses.insert(losses.end(), session.stages->losses().begin(), session.stages->losses().end());
  }
  std::string error;
  if (session.stages->computes_loss() && !losses.empty()) {
    double samples = static_cast<double>(steps * minibatch);
    std::printf("loss %.6f over %s samples, %s samples/s\n", Mean(losses), Grouped(samples).c_str(),
                Grouped(samples / (Now() - begin)).c_str());
    std::fflush(stdout);
    if (!job.metrics.empty()) {
      std::ofstream out(job.metrics);
      out << Json{{"loss", Mean(losses)}, {"samples", steps * minibatch}}.dump() << "\n";
      if (!out) error = job.metrics + ": cannot be written";
    }
  }
  Vote(transport, "writing metrics", error);
}

}  // namespace pipewright
