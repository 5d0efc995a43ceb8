// A partitioned graph as Python: a module a stage, the fused model, and the confs, as PipeDream's
// optimizer/convert_graph_to_model.py writes them.
#pragma once
#include <map>
#include <string>
#include <vector>

#include "formats/graph_text.h"

namespace pipewright {

struct CodegenOptions {
  std::string name, arch;                                    // class and file of the fused model
  std::map<int, int> replicas;                               // stage -> ranks; 1 where absent
  std::vector<std::vector<std::string>> shared;              // nodes that are uses of one module
  std::string model_template, init_template, conf_template;  // texts; "": the built-in ones
};

struct CodegenResult {
  int stages = 0;
  std::map<std::string, std::string> files;  // name -> text
  std::vector<std::string> notes;            // what the graph does not say and was assumed
};

// Templates hold %(name)s: model.py import_statements, module_name, layer_declarations,
// module_methods, inputs, function_definition; __init__.py import_statements, arch, model,
// full_model; conf.json module_to_stage_map, stage_to_rank_map.
//
// Names follow numeric node order. Inputs of the model are taken by the stages that use them. Nodes
// of one description, of which the later have no parameters of their own, are uses of one module.
// Throws Error naming the node for what cannot be written. `path` is the graph's, for messages.
CodegenResult GenerateCode(const ModelGraph& graph, const CodegenOptions& options,
                           const std::string& path);

}  // namespace pipewright
