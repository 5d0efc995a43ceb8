#include "runtime/stage/slot_memory.h"

#include <c10/core/impl/alloc_cpu.h>

#include <algorithm>
#include <atomic>
#include <utility>

#include "tensors/device_memory.h"

namespace pipewright {

// Returns memory of the device, which a tensor owns.
static std::shared_ptr<void> DeviceMemory(size_t bytes, at::Device device) {
  auto owner =
      std::make_shared<at::Tensor>(EmptyOn(device, {static_cast<int64_t>(bytes)}, at::kByte));
  void* data = owner->data_ptr();
  return {std::move(owner), data};
}

SlotMemory::SlotMemory(MemorySource source, at::Device device)
    : source_(std::move(source)),
      device_source_([device](size_t bytes) { return DeviceMemory(bytes, device); }),
      device_(device) {}

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

std::shared_ptr<void> SlotMemory::Take(Blocks& blocks, size_t bytes, bool on_device,
                                       const MemorySource& source) {
  // The first step of a run may receive in host memory what later ones receive on the device.
  std::erase_if(blocks, [&](const Block& block) {
    if (block.on_device == on_device) return false;
    bytes_ -= static_cast<int64_t>(block.bytes);
    return true;
  });
  bytes = std::max<size_t>(bytes, 1);
  auto block = std::find_if(blocks.begin(), blocks.end(),
                            [](const Block& b) { return IsFree(b.memory); });
  if (block == blocks.end()) {
    block = blocks.emplace(blocks.end());
    block->on_device = on_device;
  }
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
  for (const at::Tensor& tensor : message->tensors) bundle.regions.push_back(RegionOf(tensor));
  bundle.regions.push_back({message->layout.get(), layout_bytes});
  bundle.owner = std::shared_ptr<Tensors>(message, &message->tensors);
  return bundle;
}

Bundle SlotMemory::Receive(const ReceiveSlot& slot, const std::vector<Part>& tensors) {
  std::vector<Blocks>& blocks = slots_[slot];
  blocks.resize(tensors.size() + 1);
  Tensors message;
  size_t layout = 0;
  for (size_t i = 0; i < tensors.size(); ++i) {
    const auto& [spec, on_device] = tensors[i];
    const MemorySource& source = on_device ? device_source_ : source_;
    message.push_back(EmptyTensor(
        spec->sizes, spec->type,
        [&, on_device = on_device](size_t bytes) {
          return Take(blocks[i], bytes, on_device, source);
        },
        on_device ? device_ : at::kCPU));
    layout += static_cast<size_t>(LayoutBytes(spec->sizes.size()));
  }
  return MessageOf(std::move(message), Take(blocks.back(), layout, false, nullptr), layout);
}

}  // namespace pipewright
