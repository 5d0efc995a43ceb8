// pipewright compile MODEL -o PACKAGE
#include <CLI/CLI.hpp>
#include <iostream>
#include <memory>

#include "compiler/emit/package.h"
#include "compiler/import/import.h"
#include "passes/pipeline.h"

namespace pipewright {

namespace {

struct CompileOptions {
  std::string model, output, split, dump;
  int ranks = 0;
};

void Compile(const CompileOptions& options) {
  PipelineOptions passes;
  passes.split = ParseSplit(options.split);
  passes.dump = options.dump;
  Model model = ImportExport(options.model);
  std::vector<ModuleBody> bodies = RunPasses(model, passes);
  Manifest manifest = WritePackage(model, bodies, {options.output, options.ranks});
  std::cout << options.output << ": " << manifest.modules.size()
            << (manifest.modules.size() == 1 ? " module" : " modules") << "\n";
  if (manifest.modules.size() == 1 && passes.split.kind == SplitSpec::kMarkers)
    std::cerr << "note: the model has no markers and is one module; call "
                 "torch.distributed.pipelining.pipe_split() between layers, or pass "
                 "--split equal:N or --split modules:NAME,...\n";
  if (!manifest.exported_in_training)
    std::cerr << "note: the model was exported in evaluation mode: dropout and batch norm stay as "
                 "in evaluation when it is trained; call model.train() before exporting\n";
}

}  // namespace

void AddCompileCommand(CLI::App& app) {
  auto options = std::make_shared<CompileOptions>();
  options->split = "markers";
  app.add_option("model", options->model, "the model, exported by torch.export.save (.pt2)")
      ->required();
  app.add_option("-o,--output", options->output, "the package to write, a folder")->required();
  app.add_option("--split", options->split,
                 "where to cut: markers (pipe_split in the model), equal:N, or "
                 "modules:NAME,... (before these submodules)")
      ->capture_default_str();
  app.add_option("--ranks", options->ranks,
                 "ranks that the package's confs are for; one a module if not given")
      ->check(CLI::PositiveNumber);
  app.add_option("--dump-ir", options->dump, "folder for the graph after each pass");
  app.callback([options] { Compile(*options); });
}

}  // namespace pipewright
