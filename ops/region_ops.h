// Switches that surround operations which one module holds. They are called by the interpreter, not
// through the dispatcher, which they change:
//   pipewright::vmap_enter(int size, str randomness) -> ()   torch.vmap begins
//   pipewright::vmap_in(Tensor input, int dim) -> Tensor     `dim` is the mapped dimension
//   pipewright::vmap_out(Tensor input, int size, int dim) -> Tensor   stacks the results along it
//   pipewright::vmap_exit() -> ()
//   pipewright::autocast_enter(Device device, int dtype) -> ()   PyTorch's autocast
//   pipewright::autocast_exit(Device device) -> ()
#pragma once
#include <torch/csrc/jit/ir/ir.h>

#include <string>

namespace pipewright {

// Registers the operators once.
bool RegisterRegionOperators();

// Returns +1 if the node begins a region of this kind ("vmap", "autocast"), -1 if it ends one,
// otherwise 0.
int RegionStep(const torch::jit::Node* node, const std::string& kind);

}  // namespace pipewright
