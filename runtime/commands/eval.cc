#include "runtime/commands/eval.h"

#include <cstdio>
#include <utility>

#include "base/error.h"
#include "base/files/read_file.h"
#include "base/json.h"
#include "base/text.h"
#include "formats/package/package_files.h"
#include "runtime/exec/clock.h"
#include "runtime/exec/phase.h"
#include "runtime/feed.h"
#include "runtime/output_locks.h"
#include "runtime/reports/offload_report.h"
#include "runtime/reports/step_reports.h"

namespace pipewright {

namespace {

// Returns what `eval` prints about its samples, or "" on ranks without losses, and the same as
// JSON.
std::pair<std::string, Json> ReportEvaluation(const RunOptions& options, const Session& session,
                                              const Feed& feed, int64_t steps,
                                              const Evaluation& evaluation, double seconds) {
  if (!session.stages->has_losses() || steps == 0) return {"", nullptr};
  const Job& job = session.job;
  int64_t samples = 0;
  for (int64_t step = 0; step < steps; ++step) samples += feed.sampler->Samples(step);
  std::string accuracy;
  if (job.losses[0].HasClasses() && evaluation.known()) accuracy = AccuracyText(evaluation);
  const int64_t all = options.steps >= 0 ? samples : feed.data->samples();
  char loss[40];
  std::snprintf(loss, sizeof loss, "loss %.6f", evaluation.mean());
  std::string text = loss + accuracy + " over " + Grouped(static_cast<double>(samples)) +
                     (samples < all ? " of " + Grouped(static_cast<double>(all)) : "") +
                     " samples, " + Grouped(static_cast<double>(samples) / seconds) +
                     " samples/s\n";
  if (samples < all)
    text +=
        "  the rest do not fill a minibatch; with \"partial\" in the job they form a smaller one\n";
  Json report = EvaluationJson(job, evaluation);
  report["samples"] = samples;
  return {text, report};
}

// Does what comes before the weights.
void OpenEvaluation(const RunOptions& options, Session& session, Feed& feed) {
  ReadJobPhase(options, true, session);
  session.Open(SessionOptionsOf(options, false));
  feed.Open(session.job, session.job.data, session.run, session.job.path + ": data",
            session.transport);
  feed.minibatches = options.steps >= 0 ? options.steps : feed.sampler->per_epoch();
  Phase(session.transport, "opening outputs", [&] {
    OutputFiles outputs(ReadBy(options, session));
    outputs.Add("--metrics", options.metrics, session.transport.rank() == 0);
    outputs.Add("--offload-report", options.offload_report, session.transport.rank() == 0);
  });
}

}  // namespace

void Evaluate(const RunOptions& options, Transport& transport) {
  Session session(transport);
  Feed feed;
  OpenEvaluation(options, session, feed);
  const Job& job = session.job;
  session.Load({&feed}, AgreedOptions(options));
  session.Start();
  const int64_t steps = feed.minibatches;
  Evaluation evaluation;
  const double begin = Now();
  for (int64_t step = 0; step < steps; ++step) session.Evaluate(feed, step, evaluation);
  feed.Finish();
  const auto [text, json] =
      ReportEvaluation(options, session, feed, steps, evaluation, Now() - begin);
  // Rank 0 prints what the rank with the losses knows.
  const int from = LossRank(session);
  const std::string shown = transport.AllGather(text)[from];
  const std::string report = transport.AllGather(json.dump())[from];
  if (transport.rank() == 0) std::fputs(shown.c_str(), stdout);
  Phase(transport, "writing metrics", [&] {
    std::fputs(ReportOffload(session, steps, options.offload_report).c_str(), stdout);
    std::fflush(stdout);
    // The job's own metrics file is left alone: it is for training.
    if (shown.empty() || options.metrics.empty() || transport.rank() != 0) return;
    try {
      WriteFile(job.metrics, report + "\n");
    } catch (const std::exception& e) {
      throw Error("--metrics", e.what());
    }
  });
}

std::vector<std::string> CheckEvaluate(const RunOptions& options, Transport& transport, Job& job) {
  Session session(transport);
  Feed feed;
  OpenEvaluation(options, session, feed);
  session.Check({&feed});
  feed.Finish();
  job = session.job;
  return session.run.warnings;
}

}  // namespace pipewright
