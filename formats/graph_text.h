// PipeDream's graph text: the profile of a model, with a line for each node and an indented line
// for each edge.
//
//   node4 -- Linear(8, 8) -- forward_compute_time=1.250, backward_compute_time=2.500,
//       activation_size=4096.0, parameter_size=288.000 -- stage_id=0      (all on one line)
//   <TAB>node1 -- node4
//
// Source: graph/graph.py of msr-fiddle/pipedream.
#pragma once
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "formats/module_repr.h"

namespace pipewright {

struct GraphNode {
  std::string id;
  std::string description;  // Conv2d(3, 64, ...), Input0, Add, __getitem__(1), ...
  double forward_ms = 0;    // for a minibatch
  double backward_ms = 0;
  std::vector<double> output_bytes;  // for a minibatch; one number for each output
  bool is_list = false;              // output_bytes was written as [a; b]
  double parameter_bytes = 0;
  int stage = -1;  // -1: none was given

  double OutputBytes() const;  // the sum of output_bytes
  bool operator==(const GraphNode&) const = default;
};

struct ModelGraph {
  std::vector<GraphNode> nodes;            // in the order of the file
  std::vector<std::pair<int, int>> edges;  // (from, to) by position in `nodes`; may repeat
  // False if the edges are not grouped by destination. The order of a node's arguments is then
  // unknown, and numeric node order stands in for it.
  bool arguments_ordered = true;
  std::vector<std::pair<int, int>> places;  // line and column of each description, if read

  // Returns the node's description and its position in the file at `path`.
  Description DescriptionOf(int node, const std::string& path) const;
};

// Reads every variant that PipeDream's reader accepts: edges grouped by source or destination, list
// sizes, CRLF, isolated nodes, repeated edges. Throws Error("path:line:column: ...") for a
// malformed line, a number that is negative or not finite, a node declared twice, an edge to a node
// that is not declared above it, and a cycle.
ModelGraph ReadGraphText(std::string_view text, const std::string& path);

// Returns nodes in order, then edges grouped by destination in the order of the arguments, or in
// their order in `graph` if that of the arguments is unknown. Reading the text and writing it again
// gives the same bytes.
std::string WriteGraphText(const ModelGraph& graph);

// Returns true if `text` looks like graph text: its first line has the shape of a node.
bool LooksLikeGraphText(std::string_view text);

// Returns the sources of each node's edges in the order of its arguments.
std::vector<std::vector<int>> Arguments(const ModelGraph& graph);

// Returns a topological order that keeps to 0, 1, 2, ... if the edges allow; empty for a cycle.
std::vector<int> TopologicalOrder(int nodes, const std::vector<std::pair<int, int>>& edges);

// Orders node10 after node9: by the text before trailing digits, then by their value.
bool NumericIdLess(const std::string& a, const std::string& b);

}  // namespace pipewright
