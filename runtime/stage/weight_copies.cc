#include "runtime/stage/weight_copies.h"

#include <ATen/ATen.h>
#include <c10/core/StreamGuard.h>
#include <c10/core/impl/VirtualGuardImpl.h>

#include "runtime/disk/weight_layout.h"
#include "runtime/module/messages.h"
#include "tensors/device_memory.h"

namespace pipewright {

static c10::Stream CurrentStream(c10::Device device) {
  return c10::impl::VirtualGuardImpl(device.type()).getStream(device);
}

WeightCopies::WeightCopies(c10::Device device)
    : device_(device), stream_(c10::impl::VirtualGuardImpl(device.type()).getNewStream(device)) {}

std::shared_ptr<void> WeightCopies::Allocate(uint64_t bytes) {
  const auto size = static_cast<int64_t>(bytes);
  Slot& slot =
      slots_.emplace_back(Slot{PinnedBytes(size, kBlock), EmptyOn(device_, {size}, at::kByte),
                               c10::Event(device_.type()), c10::Event(device_.type())});
  Release(slots_.size() - 1);
  return {std::make_shared<at::Tensor>(slot.host), RegionOf(slot.host).data};
}

void WeightCopies::Copy(size_t buffer, uint64_t bytes) {
  Slot& slot = slots_.at(buffer);
  const auto size = static_cast<int64_t>(bytes);
  slot.released.block(stream_);
  {
    c10::StreamGuard guard(stream_);
    slot.device.narrow(0, 0, size).copy_(slot.host.narrow(0, 0, size), /*non_blocking=*/true);
  }
  slot.copied.record(stream_);
  slot.copied.block(CurrentStream(device_));
  ++count_;
}

bool WeightCopies::Copied(size_t buffer) const { return slots_.at(buffer).copied.query(); }

void WeightCopies::Release(size_t buffer) {
  slots_.at(buffer).released.record(CurrentStream(device_));
}

at::Tensor WeightCopies::Tensor(size_t buffer, const char* in_buffer, at::IntArrayRef sizes,
                                at::ScalarType type) const {
  const Slot& slot = slots_.at(buffer);
  const int64_t begin = in_buffer - HostBytes(slot.host).data();
  const int64_t bytes =
      c10::multiply_integers(sizes) * static_cast<int64_t>(c10::elementSize(type));
  // variable_data counts versions of its own.
  return slot.device.narrow(0, begin, bytes).view(type).view(sizes).variable_data();
}

bool WeightCopies::Holds(size_t buffer, const at::Tensor& tensor) const {
  return MemoryOf(slots_.at(buffer).device) == MemoryOf(tensor);
}

}  // namespace pipewright
