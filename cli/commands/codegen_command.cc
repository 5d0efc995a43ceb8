// pipewright codegen GRAPH -n NAME -a ARCH -o DIR
#include <CLI/CLI.hpp>
#include <charconv>
#include <iostream>
#include <memory>

#include "base/error.h"
#include "base/files/output_folder.h"
#include "base/files/read_file.h"
#include "base/process/messages.h"
#include "base/text.h"
#include "plan/partition/pipedream/codegen/codegen.h"

namespace pipewright {

namespace {

struct CodegenRequest {
  std::string graph, output, ranks, model_template, init_template, conf_template;
  std::vector<std::string> shared;
  CodegenOptions options;
  bool force = false;
};

}  // namespace

// Parses "0:3,1:1": stage 0 on three ranks, stage 1 on one.
static std::map<int, int> ReadRanks(const std::string& text) {
  std::map<int, int> ranks;
  if (text.empty()) return ranks;
  for (const std::string& part : Split(text, ',')) {
    int stage = -1, count = 0;
    const char* end = part.data() + part.size();
    auto first = std::from_chars(part.data(), end, stage);
    bool ok = first.ec == std::errc() && stage >= 0 && first.ptr < end && *first.ptr == ':';
    if (ok) {
      auto second = std::from_chars(first.ptr + 1, end, count);
      ok = second.ec == std::errc() && second.ptr == end;
    }
    if (!ok)
      throw UsageError("--stage_to_num_ranks", "STAGE:RANKS is expected, not \"" + part + "\"",
                       "for example 0:3,1:1");
    if (!ranks.emplace(stage, count).second)
      throw UsageError("--stage_to_num_ranks",
                       "stage " + std::to_string(stage) + " is given twice");
  }
  return ranks;
}

static void Codegen(const CodegenRequest& request) {
  CodegenOptions options = request.options;
  options.replicas = ReadRanks(request.ranks);
  for (const std::string& group : request.shared) options.shared.push_back(Split(group, ','));
  if (!request.model_template.empty()) options.model_template = ReadFile(request.model_template);
  if (!request.init_template.empty()) options.init_template = ReadFile(request.init_template);
  if (!request.conf_template.empty()) options.conf_template = ReadFile(request.conf_template);
  ModelGraph graph = ReadGraphText(ReadFile(request.graph), request.graph);
  CodegenResult result = GenerateCode(graph, options, request.graph);
  const std::vector<std::string> read = {request.graph, request.model_template,
                                         request.init_template, request.conf_template};
  CheckOutputFolder(request.output, kCodegenRecord, result.files, read, request.force);
  const std::vector<std::string> notes =
      WriteOutputFolder(request.output, kCodegenRecord, result.files, Json::object(), read);
  result.notes.insert(result.notes.end(), notes.begin(), notes.end());
  std::cout << request.output << ": " << Counted(result.stages, "stage") << " (stage0.py"
            << (result.stages > 1 ? " to stage" + std::to_string(result.stages - 1) + ".py" : "")
            << "), " << options.arch
            << ".py, __init__.py, dp_conf.json, mp_conf.json, hybrid_conf.json\n";
  for (const std::string& note : result.notes) PrintNote(note);
}

void AddCodegenCommand(CLI::App& app) {
  auto request = std::make_shared<CodegenRequest>();
  CodegenRequest& r = *request;
  app.add_option("graph", r.graph, "graph text that gives every node a stage")->required();
  app.add_option("-n,--model_name", r.options.name,
                 "class name of the fused model, such as VGG16Partitioned")
      ->required();
  app.add_option("-a,--arch", r.options.arch,
                 "name of the architecture and its file, such as vgg16")
      ->required();
  app.add_option("-o,--output_directory", r.output, "folder to write the files to")->required();
  app.add_flag("--force", r.force,
               "also replace files that were edited, or that codegen did not write");
  app.add_option("--stage_to_num_ranks,--stage_to_num_ranks_map", r.ranks,
                 "number of ranks of each stage for hybrid_conf.json, STAGE:RANKS,...: 0:3,1:1");
  app.add_option("--shared", r.shared, "nodes that share one module: node3,node9 (repeatable)");
  app.add_option("--model-template,--model_template_filename", r.model_template,
                 "template for the stages and the fused model");
  app.add_option("--init-template,--init_template_filename", r.init_template,
                 "template for __init__.py");
  app.add_option("--conf-template,--conf_template_filename", r.conf_template,
                 "template for the confs");
  app.callback([request] { Codegen(*request); });
}

}  // namespace pipewright
