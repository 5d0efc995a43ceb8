// Explains that a device has no memory left.
#include <ATen/DeviceAccelerator.h>

#include <set>

#include "base/size.h"
#include "base/text.h"
#include "base/torch_error.h"
#include "plan/placement/kept_bytes.h"
#include "runtime/stage/stage_state.h"

namespace pipewright {

static const char* CureOf(bool training, bool loads) {
  if (loads)
    return training ? "start more ranks, or leave frozen weights or the optimizer's state on disk"
                    : "start more ranks, or leave weights on disk (pipewright place)";
  return training
             ? "take a smaller \"microbatch_size\", recompute (\"recompute\": true), use a "
               "schedule with fewer microbatches under way (\"1f1b\"), or start more ranks"
             : "take a smaller \"microbatch_size\", start more ranks, or leave weights on disk "
               "(pipewright place)";
}

std::string TorchStages::State::Explained(const std::string& error, bool loads) const {
  if (device.is_cpu() || !SaysOutOfMemory(error)) return error;
  const bool trains = settings.options.training;
  const KeptBytes kept = KeptBytesOf(manifest, conf, settings.run.on_disk,
                                     settings.transport.rank(), trains ? &job : nullptr);
  std::vector<std::string> parts = {"weights " + SizeText(kept.weights)};
  if (trains) parts.push_back("gradients " + SizeText(kept.gradients));
  if (trains) parts.push_back("optimizer state " + SizeText(kept.optimizer));
  int64_t slots = 0;
  if (offloaded)
    for (const uint64_t bytes : offloaded->stream().buffers()) slots += static_cast<int64_t>(bytes);
  if (slots > 0) parts.push_back("slots for weights on disk " + SizeText(slots));
  const int64_t in_use = at::accelerator::getDeviceStats(device.index()).allocated_bytes[0].current;
  std::set<int> microbatches;
  for (const auto& [key, work] : under_way) microbatches.insert(key.second);
  const std::string where =
      running < 0 ? "" : manifest.modules[static_cast<size_t>(running)].name + " on ";
  return error + "\n  " + where + device.str() + ": this rank was predicted to keep " +
         SizeText(kept.Sum() + slots) + " there (" + Join(parts, ", ") +
         "), besides activations and messages, and has " + SizeText(in_use) + " in use" +
         (microbatches.empty()
              ? ""
              : ", with " + Counted(static_cast<int64_t>(microbatches.size()), "microbatch") +
                    " between forward and backward") +
         "\n  " + CureOf(trains, loads);
}

std::string TorchStages::Explained(const std::string& error) const {
  try {
    return state_->Explained(error, /*loads=*/false);
  } catch (const std::exception&) {  // the device cannot be asked any more
    return error;
  }
}

}  // namespace pipewright
