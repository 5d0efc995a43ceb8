#include "runtime/trial/written_buffers.h"

#include <set>

#include "runtime/module/module.h"
#include "runtime/module/written_weights.h"

namespace pipewright {

std::vector<WrittenBuffer> WrittenBuffers(const std::string& package, const Manifest& manifest) {
  std::vector<WrittenBuffer> buffers;
  for (size_t m = 0; m < manifest.modules.size(); ++m) {
    const ModuleInfo& info = manifest.modules[m];
    const LoadedModule module =
        LoadModuleWith(package, manifest, static_cast<int>(m),
                       {.left_out = std::vector<bool>(info.held.size(), true)});
    std::set<std::string> names;
    for (const WrittenWeight& written : WrittenWeights(*module.graph, info, WeightKind::kBuffer))
      names.insert(written.name);
    for (size_t w = 0; w < info.held.size(); ++w) {
      const WeightInfo& weight = info.held[w];
      if (!names.count(weight.name)) continue;
      const bool counts = weight.merge == BufferMerge::kSum && IsCount(*module.graph, weight.name);
      const bool updates = weight.merge == BufferMerge::kUpdates && module.kept_parts[w];
      buffers.push_back({weight.name, counts || updates});
    }
  }
  return buffers;
}

}  // namespace pipewright
