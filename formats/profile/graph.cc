#include "formats/profile/graph.h"

#include <algorithm>

#include "base/text.h"

namespace pipewright {

ModelGraph GraphOfProfile(const Profile& profile) {
  ModelGraph graph;
  std::vector<int> node_of(profile.nodes.size());
  std::vector<std::vector<double>> outputs(profile.nodes.size());
  std::vector<std::vector<int>> sources(profile.nodes.size());  // in the order of the values
  for (const ProfileValue& value : profile.values)
    if (value.producer < 0) {
      GraphNode input;
      input.id = "input" + std::to_string(graph.nodes.size());
      input.description = "Input" + std::to_string(graph.nodes.size());
      input.output_bytes = {value.bytes};
      for (int consumer : value.consumers)
        sources[consumer].push_back(static_cast<int>(graph.nodes.size()));
      graph.nodes.push_back(input);
    }
  int inputs = static_cast<int>(graph.nodes.size());
  for (const ProfileValue& value : profile.values) {
    if (value.producer < 0) continue;
    outputs[value.producer].push_back(value.bytes);
    for (int consumer : value.consumers) {
      auto& from = sources[consumer];
      if (std::find(from.begin(), from.end(), inputs + value.producer) == from.end())
        from.push_back(inputs + value.producer);
    }
  }
  for (size_t i = 0; i < profile.nodes.size(); ++i) {
    const ProfileNode& node = profile.nodes[i];
    GraphNode entry;
    entry.id = node.name;
    // The description alone could be read as an input or an operation of PipeDream's.
    entry.description = "Module(" + node.description + ")";
    entry.forward_ms = node.forward.median * 1000;
    entry.backward_ms = node.backward.median * 1000;
    entry.output_bytes = outputs[i];
    if (entry.output_bytes.empty()) entry.output_bytes = {0};
    entry.is_list = entry.output_bytes.size() > 1;
    entry.parameter_bytes = node.parameters;
    graph.nodes.push_back(entry);
  }
  for (size_t i = 0; i < profile.nodes.size(); ++i)
    for (int from : sources[i]) graph.edges.push_back({from, inputs + static_cast<int>(i)});
  return graph;
}

}  // namespace pipewright
