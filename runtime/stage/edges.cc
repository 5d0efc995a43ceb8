#include "runtime/stage/edges.h"

#include <algorithm>

namespace pipewright {

std::vector<EdgeContents> MakeEdgeContents(const Manifest& manifest, const Conf& conf,
                                           const StageGraph& graph,
                                           const std::vector<int>& losses) {
  std::vector<EdgeContents> contents(graph.edges.size());
  for (size_t e = 0; e < graph.edges.size(); ++e) {
    const StageEdge& edge = graph.edges[e];
    for (size_t id = 0; id < manifest.values.size(); ++id) {
      const ValueInfo& value = manifest.values[id];
      if (value.producer < 0 || conf.module_to_stage[value.producer] != edge.from) continue;
      std::vector<int> here;
      for (int consumer : value.consumers)
        if (conf.module_to_stage[consumer] == edge.to) here.push_back(consumer);
      if (here.empty()) continue;
      contents[e].forward.push_back(static_cast<int>(id));
      if (!value.gradient) continue;
      const bool loss = std::count(losses.begin(), losses.end(), static_cast<int>(id)) > 0;
      if (!loss && std::equal(here.rbegin(), here.rend(), value.consumers.rbegin()))
        contents[e].backward.push_back({static_cast<int>(id), here});
      else
        for (int consumer : here)
          contents[e].backward.push_back({static_cast<int>(id), {consumer}});
    }
  }
  return contents;
}

}  // namespace pipewright
