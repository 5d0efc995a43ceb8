// Manages the memory of a rank's receive buffers: allocated once, and the same in every step.
#pragma once
#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <tuple>
#include <vector>

#include "runtime/module/messages.h"
#include "runtime/trial/shapes.h"

namespace pipewright {

// The receive buffer with one number (`#1`) of one edge and direction of the plan.
struct ReceiveSlot {
  int edge = -1;
  bool backward = false;
  int slot = 0;
  bool operator<(const ReceiveSlot& other) const {
    return std::tie(edge, backward, slot) < std::tie(other.edge, other.backward, other.slot);
  }
};

// The plan frees a number when the compute that uses its message has run. What was received may be
// in use for longer: autograd keeps it until the backward, an output of the model may be a view of
// it. So each tensor of a slot has a list of blocks, and a message gets the first one that
// nothing refers to. A list grows to as many blocks as were in use at once, and a block to the
// largest message that it has held; neither shrinks. Hence the same steps get the same addresses,
// except where a stage sends on what it received (the gradient of a skip): that block is in use
// until the message has left.
class SlotMemory {
 public:
  // Takes the memory of tensors that the host receives from `source`, and of others from `device`.
  explicit SlotMemory(MemorySource source, at::Device device = at::kCPU);

  struct Part {
    const TensorSpec* spec = nullptr;
    bool on_device = false;
  };
  // Returns memory for a message that has these tensors.
  Bundle Receive(const ReceiveSlot& slot, const std::vector<Part>& tensors);

  // Return the number of allocations so far, and the bytes held now.
  int64_t allocations() const { return allocations_; }
  int64_t bytes() const { return bytes_; }

 private:
  struct Block {
    std::shared_ptr<void> memory;
    size_t bytes = 0;
    bool on_device = false;
  };
  using Blocks = std::vector<Block>;
  std::shared_ptr<void> Take(Blocks& blocks, size_t bytes, bool on_device,
                             const MemorySource& source);

  const MemorySource source_, device_source_;
  const at::Device device_;
  std::map<ReceiveSlot, std::vector<Blocks>> slots_;  // by tensor; last, the layout of the message
  int64_t allocations_ = 0, bytes_ = 0;
};

}  // namespace pipewright
