// Options that several commands of `pipewright-run` have.
#pragma once
#include "runtime/commands/run_options.h"

namespace CLI {
class App;
}

namespace pipewright {

// Each adds options to `app` that set fields of `run`, which must live until the callback.
void AddPackage(CLI::App& app, RunOptions& run);
void AddOffload(CLI::App& app, RunOptions& run);  // after AddPackage
// For commands without a job, whose `matmul` is then "auto" unless it is given.
void AddThreads(CLI::App& app, RunOptions& run);
void AddSet(CLI::App& app, RunOptions& run);
void AddDevice(CLI::App& app, RunOptions& run);
// `of_job`: it replaces the page that the job names.
void AddReport(CLI::App& app, RunOptions& run, bool of_job = true);

}  // namespace pipewright
