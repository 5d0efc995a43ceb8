#include "runtime/stage/slot_memory.h"

#include <c10/core/impl/alloc_cpu.h>

#include <algorithm>
#include <atomic>
#include <utility>

namespace pipewright {

SlotMemory::SlotMemory(MemorySource source) : source_(std::move(source)) {}

// Returns true if nothing else refers to the memory. The last reference may have been dropped by
// another thread, whose reads must come first.
static bool IsFree(const std::shared_ptr<void>& memory) {
  if (memory.use_count() > 1) return false;
  std::atomic_thread_fence(std::memory_order_acquire);
  return true;
}

// Returns memory aligned like that of LibTorch's tensors, and not counted as one of them:
// EmptyTensor counts what lies in it.
static std::shared_ptr<void> PlainMemory(size_t bytes) {
  return {c10::alloc_cpu(bytes), c10::free_cpu};
}

std::shared_ptr<void> SlotMemory::Take(Blocks& blocks, size_t bytes, const MemorySource& source) {
  bytes = std::max<size_t>(bytes, 1);
  auto block = std::find_if(blocks.begin(), blocks.end(),
                            [](const Block& b) { return IsFree(b.memory); });
  if (block == blocks.end()) block = blocks.emplace(blocks.end());
  if (block->bytes < bytes) {
    block->memory = nullptr;  // freed before more is allocated
    bytes_ -= static_cast<int64_t>(std::exchange(block->bytes, 0));
    block->memory = source ? source(bytes) : nullptr;
    if (!block->memory) block->memory = PlainMemory(bytes);
    block->bytes = bytes;
    bytes_ += static_cast<int64_t>(bytes);
    ++allocations_;
  }
  return block->memory;
}

// Makes the message, laid out as MakeMessage does.
static Bundle MessageOf(Tensors tensors, std::shared_ptr<void> layout, size_t layout_bytes) {
  struct Message {
    Tensors tensors;
    std::shared_ptr<void> layout;
  };
  auto message = std::make_shared<Message>(Message{std::move(tensors), std::move(layout)});
  Bundle bundle;
  for (const at::Tensor& tensor : message->tensors)
    bundle.regions.push_back({tensor.data_ptr(), tensor.nbytes()});
  bundle.regions.push_back({message->layout.get(), layout_bytes});
  bundle.owner = std::shared_ptr<Tensors>(message, &message->tensors);
  return bundle;
}

Bundle SlotMemory::Receive(const ReceiveSlot& slot, const std::vector<const TensorSpec*>& tensors) {
  std::vector<Blocks>& blocks = slots_[slot];
  blocks.resize(tensors.size() + 1);
  Tensors message;
  size_t layout = 0;
  for (size_t i = 0; i < tensors.size(); ++i) {
    message.push_back(EmptyTensor(tensors[i]->sizes, tensors[i]->type, [&](size_t bytes) {
      return Take(blocks[i], bytes, source_);
    }));
    layout += static_cast<size_t>(LayoutBytes(tensors[i]->sizes.size()));
  }
  return MessageOf(std::move(message), Take(blocks.back(), layout, nullptr), layout);
}

}  // namespace pipewright
