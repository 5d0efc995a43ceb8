// Writes a partitioned graph as Python: a module for each stage, the fused model, and the confs, as
// PipeDream's optimizer/convert_graph_to_model.py does.
#pragma once
#include <map>
#include <string>
#include <vector>

#include "formats/graph_text.h"

namespace pipewright {

struct CodegenOptions {
  std::string name, arch;                                    // class and file of the fused model
  std::map<int, int> replicas;                               // stage -> ranks; 1 if absent
  std::vector<std::vector<std::string>> shared;              // groups of nodes that use one module
  std::string model_template, init_template, conf_template;  // texts; "": the built-in ones
};

struct CodegenResult {
  int stages = 0;
  std::map<std::string, std::string> files;  // name -> text
  std::vector<std::string> notes;            // assumptions about what the graph lacks
};

// Writes the files. Templates have placeholders %(name)s: import_statements, module_name,
// layer_declarations, module_methods, inputs, function_definition in model.py; import_statements,
// arch, model, full_model in __init__.py; module_to_stage_map, stage_to_rank_map in conf.json.
//
// Names follow numeric node order. Each stage takes the model's inputs that it uses. Nodes with the
// same description use the same module if the later ones have no parameters. Throws Error naming
// the node for what cannot be written. `path` is the graph's, for messages.
CodegenResult GenerateCode(const ModelGraph& graph, const CodegenOptions& options,
                           const std::string& path);

}  // namespace pipewright
