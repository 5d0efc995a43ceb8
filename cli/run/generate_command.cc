// `pipewright-run generate`.
#include <CLI/CLI.hpp>
#include <memory>

#include "cli/numbers.h"
#include "cli/run/commands.h"
#include "cli/run/launch.h"
#include "cli/run/shared_options.h"
#include "runtime/commands/generate.h"

namespace pipewright {

void AddGenerate(CLI::App& app) {
  const auto options = std::make_shared<RunOptions>();
  RunOptions& run = *options;
  const auto asked = std::make_shared<GenerateOptions>();
  GenerateOptions& generate = *asked;
  AddPackage(app, run);
  auto* prompt = app.add_option("--prompt", generate.prompts,
                                "prompt to continue; each byte is a token (repeatable)")
                     ->allow_extra_args(false);
  app.add_option("--prompt-file", generate.prompt_file, "file with a prompt to continue");
  app.add_option("--tokens", generate.tokens, "prompt as token numbers, such as 1,2,3 (repeatable)")
      ->allow_extra_args(false)
      ->excludes(prompt);
  app.add_option("--max-new-tokens", generate.new_tokens, "number of tokens to add to each text")
      ->check(AtLeast(0))
      ->capture_default_str();
  app.add_option("--temperature", generate.sample.temperature,
                 "value that divides the logits; 0: always pick the likeliest token")
      ->check(NumberAtLeast(0))
      ->capture_default_str();
  app.add_option("--top-k", generate.sample.top_k, "choose among the k likeliest tokens; 0: all")
      ->check(AtLeast(0))
      ->capture_default_str();
  app.add_option("--top-p", generate.sample.top_p,
                 "choose among the likeliest tokens that together have this probability")
      ->check(NumberInRange(0, 1))
      ->capture_default_str();
  app.add_option("--repetition-penalty", generate.sample.repetition_penalty,
                 "above 1: make tokens that already occur in the text less likely")
      ->check(NumberMoreThan(0))
      ->capture_default_str();
  app.add_option("--seed", generate.seed, "seed for choosing tokens")->capture_default_str();
  app.add_option("--stop", generate.stop, "number of the token that ends a text")
      ->check(AtLeast(0));
  app.add_option("--context", generate.context,
                 "maximum number of tokens that the model sees (default: as exported)")
      ->check(AtLeast(1));
  app.add_option("--logits", generate.logits, "index of the model output that holds the logits")
      ->check(AtLeast(0))
      ->capture_default_str();
  app.add_option("-o,--output", run.output, "file to write (default: standard output)");
  app.add_flag("--json", generate.json, "write tokens and texts as JSON");
  AddThreads(app, run);
  AddDevice(app, run);
  AddOffload(app, run);
  app.callback([options, asked] {
    RunRanks(*options, {}, [&](Transport& transport) { Generate(*options, *asked, transport); });
  });
}

}  // namespace pipewright
