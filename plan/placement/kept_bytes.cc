#include "plan/placement/kept_bytes.h"

#include <algorithm>
#include <set>

#include "base/dtype.h"
#include "formats/optimizer_state.h"
#include "plan/placement/residence.h"
#include "plan/placement/tensor_ids.h"

namespace pipewright {

// Adds what training keeps of one weight.
static void AddTrained(const Manifest& manifest, const WeightInfo& weight, const Job& job,
                       KeptBytes& kept) {
  const int64_t bytes = BytesOf(weight);
  const Dtype* dtype = FindDtype(weight.dtype);
  const int bits = dtype ? dtype->bits : 0;
  const bool master = job.optimizer.master_weights && bits == 16;
  const int64_t trained = master ? 2 * bytes : bytes;
  kept.gradients += trained;
  if (job.optimizer.state_on_disk) return;
  const bool matrix = weight.shape.size() == 2 && weight.dtype.rfind("complex", 0) != 0;
  const OptimizerJob own = OptimizerFor(job.optimizer, NamesOf(manifest, weight.name), matrix);
  kept.optimizer += trained * StateTensorsPerParameter(own) + (master ? trained : 0);
}

KeptBytes KeptBytesOf(const Manifest& manifest, const Conf& conf,
                      const std::vector<std::vector<bool>>& on_disk, int rank,
                      const Job* training) {
  const std::vector<std::vector<int>> ids = TensorIds(manifest, training != nullptr);
  std::set<int> counted;
  KeptBytes kept;
  for (size_t m = 0; m < manifest.modules.size(); ++m) {
    const ModuleInfo& module = manifest.modules[m];
    const std::vector<int>& ranks =
        conf.stage_to_ranks[static_cast<size_t>(conf.module_to_stage[m])];
    if (module.skipped || std::find(ranks.begin(), ranks.end(), rank) == ranks.end()) continue;
    for (size_t w = 0; w < module.held.size(); ++w) {
      if ((!on_disk.empty() && on_disk[m][w]) || !counted.insert(ids[m][w]).second) continue;
      kept.weights += BytesOf(module.held[w]);
      if (training && module.held[w].requires_grad)
        AddTrained(manifest, module.held[w], *training, kept);
    }
  }
  return kept;
}

}  // namespace pipewright
