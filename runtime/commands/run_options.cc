#include "runtime/commands/run_options.h"

#include <ATen/Parallel.h>

#include "base/json.h"
#include "base/text.h"
#include "formats/package/package_files.h"
#include "runtime/cpu/matmul.h"
#include "runtime/data/data.h"
#include "runtime/exec/phase.h"
#include "runtime/reports/offload_report.h"

namespace pipewright {

SessionOptions SessionOptionsOf(const RunOptions& options, bool training) {
  SessionOptions asked;
  asked.package = options.package;
  asked.conf = options.conf;
  asked.weights = options.weights;
  asked.device_map = options.device_map;
  asked.training = training;
  asked.resumes = training && (options.resume || !options.resume_from.empty());
  asked.keep_gradients = !options.save_gradients.empty();
  asked.trace_memory = !options.trace.empty();
  asked.verify_files = options.verify_files;
  asked.device = options.device;
  asked.share_devices = options.share_devices;
  asked.links = options.links;
  if (!training) asked.matmul = options.matmul;
  return asked;
}

// If the schedule of the learning rate is as long as the run, records that in the job's text, so
// that a resumed run can tell that it has changed.
static void RecordSteps(Job& job) {
  const RateJob& rate = job.optimizer.rate;
  if (rate.steps > 0 || !rate.HasLength()) return;
  Json text = ParseJson(job.text, job.path);
  text["steps"] = job.steps;
  job.text = FormatJson(text);
}

Job ReadJobOf(const RunOptions& options) {
  Job job = ReadJob(options.job, options.set);
  if (options.steps >= 0) {
    job.steps = options.steps;
    RecordSteps(job);
  }
  if (!options.schedule.empty()) SetSchedule(job, options.schedule);
  if (!options.save.empty()) job.save = options.save;
  if (!options.metrics.empty()) job.metrics = options.metrics;
  if (!options.report.empty()) job.report = options.report;
  if (!options.checkpoint.empty()) job.checkpoint.folder = options.checkpoint;
  return job;
}

AgreedFields AgreedOptions(const RunOptions& options) {
  // Names every option, so that this does not compile until a new one is considered.
  const auto& [package, job, conf, weights, set, checkpoint, steps, schedule, save, metrics, report,
               save_gradients, trace, resume, resume_from, input, output, outputs, microbatches,
               threads, matmul, on_request, device_map, offload_dir, offload_report, device, links,
               share_devices, verify_files] = options;
  return {{"weights", weights},
          {"set", Join(set, "\n")},
          {"checkpoint", checkpoint},
          {"steps", std::to_string(steps)},
          {"schedule", schedule},
          {"save", save},
          {"metrics", metrics},
          {"report", report},
          {"save_gradients", save_gradients},
          {"trace", trace},
          {"resume", std::to_string(resume)},
          {"resume_from", resume_from},
          {"input", input},
          {"output", output},
          {"outputs", Join(outputs, ",")},
          {"microbatches", std::to_string(microbatches)},
          {"matmul", std::to_string(static_cast<int>(matmul))},
          {"on_request", std::to_string(on_request)},
          {"device_map", device_map},
          {"device", device},
          {"links", std::to_string(static_cast<int>(links))},
          {"share_devices", std::to_string(share_devices)},
          {"verify_files", std::to_string(verify_files)}};
}

// It is a phase of its own: nothing else can start without it.
void ReadJobPhase(const RunOptions& options, bool evaluates, Session& session) {
  Phase(session.transport, "reading", [&] {
    session.job = ReadJobOf(options);
    CheckEnoughFiles(session.job, session.job.data);
    if (session.job.validation.every > 0 && !evaluates)
      CheckEnoughFiles(session.job, session.job.validation.data);
    at::set_num_threads(session.job.threads);
    UseMatMul(session.job.matmul, session.job.path + ": matmul");
    CheckOffload(options.offload_dir, options.offload_report, session.transport);
  });
}

std::vector<std::string> ReadBy(const RunOptions& options, const Session& session) {
  return RunFiles(options.package, session.run.manifest, session.job,
                  {options.weights, options.conf, options.device_map});
}

int LossRank(const Session& session) {
  return session.run.conf.stage_to_ranks[session.stages->loss_stages()[0]][0];
}

}  // namespace pipewright
