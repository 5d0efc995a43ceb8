// `pipewright-run infer`.
#include <CLI/CLI.hpp>
#include <memory>

#include "cli/numbers.h"
#include "cli/run/commands.h"
#include "cli/run/launch.h"
#include "cli/run/shared_options.h"
#include "runtime/commands/infer.h"

namespace pipewright {

void AddInfer(CLI::App& app) {
  const auto options = std::make_shared<RunOptions>();
  RunOptions& run = *options;
  AddPackage(app, run);
  app.add_option("--input", run.input, "safetensors file with a tensor for each input")->required();
  app.add_option("-o,--output", run.output, "safetensors file to write")->required();
  app.add_option(
         "--outputs", run.outputs,
         "compute only these outputs: NAME,...; inputs that they do not need may be missing")
      ->delimiter(',');
  app.add_option("--microbatches", run.microbatches,
                 "number of microbatches to split the rows into")
      ->check(AtLeast(1, 1 << 20));
  AddThreads(app, run);
  AddDevice(app, run);
  AddOffload(app, run);
  app.add_flag("--on-request", run.on_request,
               "before that, run a measurement for each line on standard input: \"steps N\"");
  app.callback([options] {
    RunRanks(*options, {}, [&](Transport& transport) { Infer(*options, transport); });
  });
}

}  // namespace pipewright
