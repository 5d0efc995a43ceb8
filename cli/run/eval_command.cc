// `pipewright-run eval`.
#include <CLI/CLI.hpp>
#include <memory>

#include "cli/numbers.h"
#include "cli/run/commands.h"
#include "cli/run/launch.h"
#include "cli/run/shared_options.h"
#include "runtime/commands/eval.h"

namespace pipewright {

void AddEval(CLI::App& app) {
  const auto options = std::make_shared<RunOptions>();
  RunOptions& run = *options;
  AddPackage(app, run);
  app.add_option("job", run.job, "job file: data and loss")->required();
  AddSet(app, run);
  app.add_option("--steps", run.steps, "number of minibatches (default: one pass over the data)")
      ->check(AtLeast(1));
  app.add_option("--metrics", run.metrics, "where to write the result as JSON");
  AddDevice(app, run);
  AddOffload(app, run);
  app.callback([options] {
    RunRanks(*options, {}, [&](Transport& transport) { Evaluate(*options, transport); });
  });
}

}  // namespace pipewright
