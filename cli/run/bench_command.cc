// `pipewright-run bench`.
#include <CLI/CLI.hpp>
#include <cstdio>
#include <memory>
#include <string>

#include "base/process/messages.h"
#include "cli/numbers.h"
#include "cli/run/commands.h"
#include "cli/run/launch.h"
#include "cli/run/shared_options.h"
#include "cli/run/with_report.h"
#include "runtime/commands/bench.h"

namespace pipewright {

// A message counts for the thread that makes it until the other rank has freed it.
static void WarnOfThreads() {
  if (ThreadRanks() < 2) return;
  std::string advice;
#ifdef PIPEWRIGHT_MPI
  advice = ": for exact figures, measure with -n " + std::to_string(ThreadRanks()) +
           " in place of --in-process";
#endif
  PrintWarning("the memory of ranks that are threads cannot be told apart" + advice);
}

void AddBench(CLI::App& app) {
  const auto options = std::make_shared<RunOptions>();
  RunOptions& run = *options;
  const auto asked = std::make_shared<BenchOptions>();
  BenchOptions& bench = *asked;
  AddPackage(app, run);
  app.add_option("job", run.job, "job file: data, loss, optimizer, schedule")->required();
  AddSet(app, run);
  app.add_option("--steps", bench.steps, "number of steps to measure (default: 10)")
      ->check(AtLeast(1));
  app.add_option("--warmup", bench.warmup, "number of steps to run before measuring (default: 3)")
      ->check(AtLeast(0));
  app.add_option("--schedule", run.schedule, "schedule (overrides the job)");
  app.add_option("--trace", run.trace, "write a Chrome trace, for `pipewright simulate --compare`");
  app.add_option("--costs", bench.costs,
                 "write the costs of the stages, for `pipewright simulate`");
  AddDevice(app, run);
  AddReport(app, run, /*of_job=*/false);
  auto* json = app.add_flag("--json", bench.json, "print the figures as JSON");
  app.add_flag("--on-request", bench.on_request,
               "run a measurement for each line on standard input: \"steps N\", \"steps N each\", "
               "\"stages SECONDS\" or \"halves SECONDS\"")
      ->excludes(json);
  app.callback([options, asked] {
    RunRanks(*options, {}, [&](Transport& transport) {
      const RunOptions& own = *options;
      BenchOptions measured = *asked;
      measured.package = own.package, measured.job = own.job, measured.conf = own.conf;
      measured.weights = own.weights;
      measured.schedule = own.schedule, measured.trace = own.trace;
      measured.verify_files = own.verify_files, measured.set = own.set;
      measured.device = own.device, measured.links = own.links;
      measured.share_devices = own.share_devices;
      const auto measure = [&] {
        Bench(measured, transport);
        if (!measured.on_request && transport.rank() == 0) WarnOfThreads();
      };
      // The job's "report" is the page of its training.
      if (measured.on_request || own.report.empty()) return measure();
      WithReport(own, transport, measured.json ? stderr : stdout, measure,
                 [&](const Job&, PageInput& input) { input.trace = own.trace; });
    });
  });
}

}  // namespace pipewright
