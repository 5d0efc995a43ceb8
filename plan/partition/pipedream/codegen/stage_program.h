// Represents the stages of a partitioned graph as programs, before they are written as text.
#pragma once
#include <string>
#include <vector>

#include "formats/graph_text.h"
#include "plan/partition/pipedream/codegen/torch_text.h"

namespace pipewright {

// The generated code by stage: the nodes of each, and the values that enter and leave it.
struct StageProgram {
  const ModelGraph& graph;
  const std::string& path;  // the graph's file, for messages

  int stages = 0;
  std::vector<char> dropped;  // unused __getitem__
  std::vector<char> none;     // None in Python: hidden states and their items
  std::vector<NodeKind> kind;
  std::vector<int> stage_of;  // -1 for inputs
  std::vector<int> order;     // topological, then numeric
  std::vector<std::vector<int>> arguments, users;
  std::vector<int> module_of;                              // the node whose module a node uses
  std::vector<std::vector<int>> members, inputs, outputs;  // by stage, in numeric order
  std::vector<std::vector<std::string>> takes, gives;      // names of inputs and outputs
  std::vector<std::string> model_inputs, model_outputs;
  std::vector<std::string> notes;  // assumptions about what the graph lacks

  Description Describe(int node) const { return graph.DescriptionOf(node, path); }
  std::string Where(int node) const { return Describe(node).At(); }
};

// Makes the programs. `shared`: groups of nodes that use one module. Throws Error naming the node
// for stages that cannot be written.
StageProgram MakeStageProgram(const ModelGraph& graph,
                              const std::vector<std::vector<std::string>>& shared,
                              const std::string& path);

}  // namespace pipewright
