#include "tensors/device_memory.h"

#include <ATen/ATen.h>

#include <algorithm>

namespace pipewright {

at::Tensor EmptyOn(at::Device device, at::IntArrayRef sizes, at::ScalarType type) {
  return at::empty(sizes, at::device(device).dtype(type));
}

at::Tensor PinnedBytes(int64_t bytes, uint64_t alignment) {
  const auto spare = static_cast<int64_t>(alignment - 1);
  const at::Tensor memory =
      at::empty({bytes + spare}, at::device(at::kCPU).dtype(at::kByte).pinned_memory(true));
  const uint64_t past = reinterpret_cast<uintptr_t>(memory.const_data_ptr()) % alignment;
  return memory.narrow(0, static_cast<int64_t>((alignment - past) % alignment), bytes);
}

Filler::Filler(const at::Tensor& tensor) {
  if (tensor.is_cpu())
    to_ = static_cast<char*>(tensor.data_ptr());
  else
    bytes_ = tensor.detach().view({-1}).view(at::kByte);
}

void Filler::Add(std::string_view piece) {
  if (to_) {
    to_ = std::copy(piece.begin(), piece.end(), to_);
    return;
  }
  if (piece.empty()) return;
  const auto size = static_cast<int64_t>(piece.size());
  const at::Tensor from =
      at::from_blob(const_cast<char*>(piece.data()), {size}, at::dtype(at::kByte));
  at::AutoDispatchBelowADInplaceOrView same_version;
  bytes_.narrow(0, filled_, size).copy_(from);
  filled_ += size;
}

void ReadInto(const SafetensorsFile& file, const TensorInfo& from, const at::Tensor& to) {
  if (from.end == from.begin) return;
  const uint64_t bytes = from.end - from.begin;
  if (to.is_cpu()) return file.Read(from, 0, static_cast<char*>(to.data_ptr()), bytes);
  constexpr uint64_t kStaging = uint64_t{4} << 20;
  const at::Tensor staging = PinnedBytes(static_cast<int64_t>(std::min(bytes, kStaging)));
  Filler filler(to);
  for (uint64_t at = 0; at < bytes; at += kStaging) {
    const uint64_t size = std::min(kStaging, bytes - at);
    file.Read(from, at, static_cast<char*>(staging.data_ptr()), size);
    filler.Add(HostBytes(staging).substr(0, size));
  }
}

at::Tensor OnHost(const at::Tensor& tensor) {
  return tensor.is_cpu() ? tensor : tensor.to(at::kCPU);
}

at::Tensor OnPinnedHost(const at::Tensor& tensor) {
  if (tensor.is_cpu()) return tensor;
  const at::Tensor copy = at::empty_strided(tensor.sizes(), tensor.strides(),
                                            tensor.options().device(at::kCPU).pinned_memory(true));
  return copy.copy_(tensor);
}

at::Tensor CopyOnHost(const at::Tensor& tensor) {
  return tensor.is_cpu() ? tensor.clone() : tensor.to(at::kCPU);
}

at::Tensor OnDevice(const at::Tensor& tensor, at::Device device) {
  return tensor.device() == device ? tensor : tensor.to(device);
}

at::Tensor OnDeviceLater(const at::Tensor& tensor, at::Device device) {
  if (tensor.device() == device || !tensor.is_cpu()) return OnDevice(tensor, device);
  // Only pinned memory can be read later; LibTorch keeps it until then.
  return tensor.pin_memory().to(device, /*non_blocking=*/true);
}

std::string_view HostBytes(const at::Tensor& tensor) {
  TORCH_CHECK(tensor.is_cpu(), "the host cannot read the bytes of a tensor on ", tensor.device());
  return {static_cast<const char*>(tensor.const_data_ptr()), tensor.nbytes()};
}

const void* MemoryOf(const at::Tensor& tensor) { return tensor.storage().unsafeGetStorageImpl(); }

}  // namespace pipewright
