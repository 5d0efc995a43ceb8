// `pipewright-run train`.
#include <CLI/CLI.hpp>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <memory>
#include <system_error>

#include "base/error.h"
#include "cli/numbers.h"
#include "cli/run/commands.h"
#include "cli/run/launch.h"
#include "cli/run/shared_options.h"
#include "cli/run/tuned.h"
#include "cli/run/with_report.h"
#include "runtime/commands/train.h"

namespace pipewright {

static void TrainWithReport(const RunOptions& run, Transport& transport) {
  int64_t steps = 0;
  WithReport(
      run, transport, stdout, [&] { steps = Train(run, transport); },
      [&](const Job& job, PageInput& input) {
        if (steps > 0) input.trace = run.trace;
        // A run that had nothing left to train may have written no metrics; a stream cannot be
        // read.
        std::error_code none;
        if (std::filesystem::is_regular_file(job.metrics, none) &&
            std::filesystem::file_size(job.metrics, none) > 0)
          input.metrics = {job.metrics};
      });
}

void AddTrain(CLI::App& app) {
  const auto options = std::make_shared<RunOptions>();
  RunOptions& run = *options;
  const auto quiet = std::make_shared<bool>(false), verbose = std::make_shared<bool>(false);
  AddPackage(app, run);
  app.add_option("job", run.job, "job file: data, loss, optimizer, schedule")->required();
  AddSet(app, run);
  app.add_option("--steps", run.steps, "number of steps (overrides the job)")->check(AtLeast(1));
  app.add_option("--schedule", run.schedule, "schedule (overrides the job)");
  app.add_option("--save", run.save, "where to save the trained weights (overrides the job)");
  app.add_option("--metrics", run.metrics,
                 "where to write metrics, one JSON line per step (overrides the job)");
  app.add_option("--trace", run.trace,
                 "write a Chrome trace of the last step (chrome://tracing, Perfetto)");
  AddReport(app, run);
  app.add_option("--checkpoint", run.checkpoint, "folder for checkpoints (overrides the job)");
  auto* resume = app.add_flag("--resume", run.resume,
                              "resume from the latest checkpoint of the job, if there is one");
  app.add_option("--resume-from", run.resume_from,
                 "resume from this checkpoint, or from the latest one in this folder")
      ->excludes(resume);
  app.add_option("--save-gradients", run.save_gradients, "write the last step's gradients");
  AddDevice(app, run);
  AddOffload(app, run);
  AddTune(app);
  auto* no_lines = app.add_flag("--quiet", *quiet, "print only warnings and errors");
  app.add_flag("--verbose", *verbose, "print a line for each step")->excludes(no_lines);
  app.callback([options, quiet, verbose] {
    // Its file descriptor stays open, because metrics may go to /dev/stdout.
    if (*quiet && !(stdout = std::fopen("/dev/null", "w")))
      throw Error("/dev/null", std::strerror(errno));
    UseTuned(*options, *quiet);
    if (*verbose) options->set.insert(options->set.begin(), "log_every=1");
    LaunchTraits traits;
    traits.trains = true;
    traits.progress_line = !*quiet;
    RunRanks(*options, traits, [&](Transport& transport) { TrainWithReport(*options, transport); });
  });
}

}  // namespace pipewright
