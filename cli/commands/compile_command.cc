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
#include "compiler/compile.h"
#include "compiler/emit/package.h"
#include "compiler/import/import.h"
#include "compiler/measured/profile_split.h"
#include "formats/torch/archive.h"
#include "ops/op_library.h"

namespace pipewright {

namespace {

struct CompileRequest {
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

void Run(CompileRequest options) {
  if (options.split.empty() && options.split_after.empty())
    options.split = DefaultSplit(options.model);
  options.compile.passes.split = ParseSplit(options.split, options.split_after);
  if (!options.input.empty() && options.compile.passes.split.kind != SplitSpec::kProfile)
    throw UsageError("--input", "is only for --split profile:N",
                     "leave it out; to name the inputs of a TorchScript model, use --input-names");
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
  auto options = std::make_shared<CompileRequest>();
  app.add_option("model", options->model,
                 "the model: a file from torch.export.save (.pt2) or torch.jit.save (.pt)")
      ->required();
  app.add_option("-o,--output", options->compile.output, "the package folder to write")
      ->required();
  app.add_flag("--force", options->compile.force, "replace a package that was edited by hand");
  app.add_option("--split", options->split,
                 "where to cut: markers (pipe_split in the model; the default, unless the export "
                 "has its own), modules:NAME,... (before these submodules), children:PATH (one "
                 "module per child), equal:N (by operations), balanced:N (by cost), profile:N (by "
                 "measured time), size:BYTES (of weights), or a JSON file that assigns submodules "
                 "to modules");
  app.add_option("--input", options->input,
                 "for profile:N: safetensors file with a tensor for each input (default: the "
                 "example that the .pt2 was exported with)");
  app.add_option("--microbatch-size", options->microbatch,
                 "for profile:N: samples per microbatch (default: as many as the inputs have)")
      ->check(AtLeast(1));
  // An option without a group is hidden: this is the name in earlier versions.
  app.add_option("--microbatch", options->microbatch)->check(AtLeast(1))->group("");
  app.add_option("--repeat", options->repeat,
                 "for profile:N: measurements of each time (default: 10)")
      ->check(AtLeast(1));
  app.add_option("--split-after", options->split_after, "cut after these submodules: NAME,...")
      ->delimiter(',');
  app.add_option("--shared", options->shared,
                 "how modules share parameters: replicate (default), transmit (the first module "
                 "keeps them and sends them to the others), or transmit:NAME,...");
  app.add_option("--weights", options->compile.weights,
                 "take the weights from this checkpoint (safetensors, shards, torch.save)");
  app.add_option("--dtype", options->compile.dtype,
                 "cast floating-point tensors to float32, bfloat16, float16, ...");
  app.add_option("--input-names", options->inputs,
                 "TorchScript: names of the inputs that a run provides, NAME,... (default: those "
                 "without a default value)")
      ->delimiter(',');
  app.add_option("--inputs", options->inputs)->delimiter(',')->group("");
  app.add_option("--op-library", options->op_libraries,
                 "shared library with custom operators, which every run loads too (repeatable)")
      ->allow_extra_args(false);
  app.add_option("--ranks", options->compile.ranks,
                 "number of ranks in the package's confs (default: one per module)")
      ->check(AtLeast(1));
  app.add_flag("--explain", options->explain,
               "explain why each group of operations is in its module");
  app.add_option("--dump-ir", options->compile.passes.dump,
                 "write the graph after each pass to this folder");
  app.callback([options] { Run(*options); });
}

}  // namespace pipewright
