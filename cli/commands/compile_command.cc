// `pipewright compile MODEL -o PACKAGE`
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <filesystem>
#include <iostream>
#include <memory>

#include "base/error.h"
#include "base/process/messages.h"
#include "base/text.h"
#include "cli/numbers.h"
#include "compiler/archive/archive.h"
#include "compiler/compile.h"
#include "compiler/emit/package.h"
#include "compiler/import/import.h"
#include "compiler/measured/profile_split.h"
#include "ops/op_library.h"

namespace pipewright {

namespace {

struct Options {
  std::string model, split, shared, input;
  std::vector<std::string> split_after, inputs, op_libraries;
  bool explain = false;
  int64_t microbatch = 0;
  int repeat = 10;
  CompileOptions compile;
};

// Returns where to cut a model if the command line does not say it: as the export itself says (the
// Python package writes it there), or at its markers.
std::string DefaultSplit(const std::string& model) try {
  const Archive archive(model);
  const std::string record = "extra/pipewright_split";
  return archive.Has(record) ? archive.Read(record) : "markers";
} catch (const Error&) {  // the import reports what is wrong with the file
  return "markers";
}

void Run(Options options) {
  if (options.split.empty() && options.split_after.empty())
    options.split = DefaultSplit(options.model);
  options.compile.passes.split = ParseSplit(options.split, options.split_after);
  if (!options.input.empty() && options.compile.passes.split.kind != SplitSpec::kProfile)
    throw UsageError("--input", "is what --split profile:N measures with, and nothing else",
                     "leave it out; the names of a TorchScript model's inputs are --input-names");
  options.compile.passes.shared = ParseShared(options.shared);
  CheckReplaceable({options.compile.output, options.compile.ranks, options.compile.force},
                   {options.model, options.compile.weights, options.input});
  std::vector<std::string> libraries;
  for (const std::string& path : options.op_libraries) {
    std::error_code error;
    auto whole = std::filesystem::canonical(path, error);
    libraries.push_back(error ? path : whole.string());
    LoadOpLibrary(libraries.back());
  }
  ImportOptions import;
  import.inputs = options.inputs;
  auto read = [&] {
    Model model = ImportModel(options.model, import);
    model.op_libraries = libraries;
    return model;
  };
  if (options.compile.passes.split.kind == SplitSpec::kProfile) {
    std::string note;
    ProfileSplit wanted{options.compile, read, options.input, options.microbatch,
                        options.repeat};
    std::filesystem::path output = std::filesystem::path(options.compile.output).lexically_normal();
    if (!output.has_filename()) output = output.parent_path();
    wanted.compile.output = output.string() + ".pieces" + std::to_string(getpid());
    options.compile.passes.split = FindProfileSplit(wanted, note);
    PrintNote(note);
  }
  Model model = read();
  Compiled compiled = Compile(model, options.compile);
  std::cout << options.compile.output << ": " << Counted(compiled.manifest.modules.size(), "module")
            << "\n";
  if (options.explain) std::cout << compiled.explanation;
  for (const std::string& note : compiled.notes) PrintNote(note);
}

}  // namespace

void AddCompileCommand(CLI::App& app) {
  auto options = std::make_shared<Options>();
  app.add_option("model", options->model,
                 "the model: a file of torch.export.save (.pt2) or torch.jit.save (.pt)")
      ->required();
  app.add_option("-o,--output", options->compile.output, "the package to write, a folder")
      ->required();
  app.add_flag("--force", options->compile.force, "replace a package that was edited by hand");
  app.add_option("--split", options->split,
                 "where to cut: markers (pipe_split in the model; the default, unless the export "
                 "says another), modules:NAME,... (before these submodules), children:PATH (one "
                 "module a child), equal:N (by operations), balanced:N (by cost), profile:N (by "
                 "measured time), size:BYTES (of weights), or a JSON file of submodules and their "
                 "modules");
  app.add_option("--input", options->input,
                 "safetensors file with a tensor for each input to measure with, for profile:N "
                 "(default: the example that a .pt2 was exported with)");
  app.add_option("--microbatch-size", options->microbatch,
                 "samples to measure with, for profile:N (default: as many as the inputs have)")
      ->check(AtLeast(1));
  // An option without a group is hidden: this is the name in earlier versions.
  app.add_option("--microbatch", options->microbatch)->check(AtLeast(1))->group("");
  app.add_option("--repeat", options->repeat, "measurements of each time, for profile:N (10)")
      ->check(AtLeast(1));
  app.add_option("--split-after", options->split_after, "cut after these submodules: NAME,...")
      ->delimiter(',');
  app.add_option("--shared", options->shared,
                 "parameters that several modules use: replicate (the default), transmit (kept in "
                 "the first, sent to the others), transmit:NAME,...");
  app.add_option("--weights", options->compile.weights,
                 "take the weights from this checkpoint (safetensors, shards, torch.save)");
  app.add_option("--dtype", options->compile.dtype, "cast floats: float32, bfloat16, float16, ...");
  app.add_option("--input-names", options->inputs,
                 "TorchScript: the inputs that a run gives, NAME,... (default: those without a "
                 "default value)")
      ->delimiter(',');
  app.add_option("--inputs", options->inputs)->delimiter(',')->group("");
  app.add_option("--op-library", options->op_libraries,
                 "a shared library with operators of your own; also loaded by every run")
      ->allow_extra_args(false);
  app.add_option("--ranks", options->compile.ranks,
                 "ranks that the package's confs are for; one a module if not given")
      ->check(AtLeast(1));
  app.add_flag("--explain", options->explain, "say why every group of operations is where it is");
  app.add_option("--dump-ir", options->compile.passes.dump, "folder for the graph after each pass");
  app.callback([options] { Run(*options); });
}

}  // namespace pipewright
