#include "torch_device.h"

#include <ATen/ATen.h>
#include <ATen/EmptyTensor.h>
#include <ATen/core/CachingHostAllocator.h>
#include <ATen/detail/PrivateUse1HooksInterface.h>
#include <ATen/ops/_reshape_alias_native.h>
#include <ATen/ops/as_strided_native.h>
#include <ATen/ops/set_native.h>
#include <ATen/ops/unfold_native.h>
#include <ATen/ops/view_as_complex_native.h>
#include <ATen/ops/view_as_real_native.h>
#include <ATen/ops/view_native.h>
#include <c10/core/CachingDeviceAllocator.h>
#include <c10/core/impl/DeviceGuardImplInterface.h>
#include <torch/library.h>

#include <array>
#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <utility>

namespace sim {

namespace {

using c10::Device, c10::DeviceIndex, c10::Stream, c10::kPrivateUse1;

thread_local std::array<Queue*, kMaxDevices> t_queues = {};

DeviceIndex Current() { return static_cast<DeviceIndex>(CurrentDevice()); }

Device DeviceOr(std::optional<Device> device) {
  return Device(kPrivateUse1, device && device->has_index() ? device->index() : Current());
}

Stream StreamOf(const Queue& queue) {
  return Stream(Stream::UNSAFE, Device(kPrivateUse1, static_cast<DeviceIndex>(DeviceOf(queue))),
                IdOf(queue));
}

// Counts how often the host has waited for the device. Appends the counts to the file SIM_WAITS
// when the process ends, as "devices 0 streams 0 events 8 copies 0".
struct HostWaits {
  std::atomic<int64_t> devices = 0, streams = 0, events = 0, copies = 0;
  ~HostWaits() {
    const char* path = std::getenv("SIM_WAITS");
    std::FILE* file = path ? std::fopen(path, "a") : nullptr;
    if (!file) return;
    std::fprintf(file, "devices %ld streams %ld events %ld copies %ld\n", devices.load(),
                 streams.load(), events.load(), copies.load());
    std::fclose(file);
  }
};
HostWaits host_waits;

// Implements devices, streams and events.
struct Guard final : c10::impl::DeviceGuardImplInterface {
  using MarkOfEvent = std::shared_ptr<Mark>;
  static MarkOfEvent& MarkIn(void* event) { return *static_cast<MarkOfEvent*>(event); }

  c10::DeviceType type() const override { return kPrivateUse1; }
  Device exchangeDevice(Device device) const override {
    const Device old = getDevice();
    setDevice(device);
    return old;
  }
  Device getDevice() const override { return Device(kPrivateUse1, Current()); }
  void setDevice(Device device) const override {
    TORCH_CHECK(device.index() >= 0 && device.index() < deviceCount(), "sim: there is no ", device);
    CurrentDevice() = device.index();
  }
  void uncheckedSetDevice(Device device) const noexcept override {
    CurrentDevice() = device.index();
  }
  DeviceIndex deviceCount() const noexcept override {
    return static_cast<DeviceIndex>(DeviceCount());
  }

  Stream getStream(Device device) const override { return StreamOf(CurrentQueue(device.index())); }
  Stream getDefaultStream(Device device) const override {
    return StreamOf(*sim::QueueOf(DeviceOr(device).index(), 0));
  }
  Stream getStreamFromGlobalPool(Device device, bool) const override {
    return getNewStream(device, 0);
  }
  Stream getNewStream(Device device, int) const override {
    return StreamOf(*NewQueue(DeviceOr(device).index()));
  }
  Stream exchangeStream(Stream stream) const override {
    const Stream old = getStream(stream.device());
    t_queues.at(static_cast<size_t>(stream.device_index())) = &sim::QueueOf(stream);
    return old;
  }
  void* getStreamNativeHandle(const Stream stream) const override { return &sim::QueueOf(stream); }
  bool queryStream(const Stream& stream) const override { return IsIdle(sim::QueueOf(stream)); }
  void synchronizeStream(const Stream& stream) const override {
    ++host_waits.streams;
    Synchronize(sim::QueueOf(stream));
  }
  void synchronizeDevice(const DeviceIndex device) const override {
    ++host_waits.devices;
    SynchronizeDevice(device);
  }

  void record(void** event, const Stream& stream, const DeviceIndex device,
              const c10::EventFlag) const override {
    TORCH_CHECK(device == -1 || device == stream.device_index(), "sim: an event of another device");
    if (!*event) *event = new MarkOfEvent;
    MarkIn(*event) = Record(sim::QueueOf(stream));
  }
  void block(void* event, const Stream& stream) const override {
    if (event) Block(sim::QueueOf(stream), MarkIn(event));
  }
  bool queryEvent(void* event) const override { return !event || IsDone(*MarkIn(event)); }
  void synchronizeEvent(void* event) const override {
    ++host_waits.events;
    if (event) Wait(*MarkIn(event));
  }
  void destroyEvent(void* event, const DeviceIndex) const noexcept override {
    delete static_cast<MarkOfEvent*>(event);
  }
  double elapsedTime(void* from, void* to, const DeviceIndex) const override {
    return Milliseconds(*MarkIn(from), *MarkIn(to));
  }
  void recordDataPtrOnStream(const c10::DataPtr& data, const Stream& stream) const override {
    RecordStream(data.get(), sim::QueueOf(stream));
  }
};
C10_REGISTER_GUARD_IMPL(PrivateUse1, Guard)

// Tells memory profilers of LibTorch.
void Report(void* data, int64_t change) {
  if (data && c10::memoryProfilingEnabled())
    c10::reportMemoryUsageToProfiler(data, change, 0, 0, Device(kPrivateUse1, Current()));
}

void FreeReported(void* data) { Report(data, -static_cast<int64_t>(Free(data))); }

struct DeviceMemory final : c10::DeviceAllocator {
  c10::DataPtr allocate(size_t bytes) override {
    void* data = nullptr;
    try {
      data = Allocate(Current(), bytes, CurrentQueue(Current()));
    } catch (const OutOfMemory& e) {
      TORCH_CHECK_WITH(OutOfMemoryError, false, e.what());
    }
    Report(data, static_cast<int64_t>(RoundedUp(bytes)));
    return {data, data, FreeReported, Device(kPrivateUse1, Current())};
  }
  c10::DeleterFnPtr raw_deleter() const override { return FreeReported; }
  void copy_data(void*, const void*, size_t) const override {
    TORCH_CHECK(false, "sim: copy_data would be the host's");
  }
  bool initialized() override { return true; }
  void emptyCache(c10::MempoolId_t) override {}
  void recordStream(const c10::DataPtr& data, Stream stream) override {
    RecordStream(data.get(), sim::QueueOf(stream));
  }
  c10::CachingDeviceAllocator::DeviceStats getDeviceStats(DeviceIndex device) override {
    c10::CachingDeviceAllocator::DeviceStats stats;
    stats.allocated_bytes[0].current = static_cast<int64_t>(BytesInUse(device));
    return stats;
  }
  void resetAccumulatedStats(DeviceIndex) override {}
  void resetPeakStats(DeviceIndex) override {}
};
DeviceMemory device_memory;
REGISTER_ALLOCATOR(kPrivateUse1, &device_memory)

struct PinnedMemory final : at::HostAllocator {
  c10::DataPtr allocate(size_t bytes) override {
    void* data = AllocatePinned(bytes);
    return {data, data, FreePinned, Device(c10::kCPU)};
  }
  c10::DeleterFnPtr raw_deleter() const override { return FreePinned; }
  void copy_data(void* to, const void* from, size_t bytes) const override {
    std::memcpy(to, from, bytes);
  }
  bool record_event(void*, void*, Stream) override { return true; }  // tasks hold what they use
  void empty_cache() override {}
  at::HostStats get_stats() override { return {}; }
  void reset_accumulated_stats() override {}
  void reset_peak_stats() override {}
};
PinnedMemory pinned_memory;
REGISTER_HOST_ALLOCATOR(kPrivateUse1, &pinned_memory)

void GrowStorage(const c10::Storage& storage, size_t bytes) {
  c10::DeviceGuard guard(storage.device());
  c10::DataPtr data = device_memory.allocate(bytes);
  void* const to = data.get();
  const void* const from = storage.data();
  const size_t kept = std::min(bytes, storage.nbytes());
  if (kept > 0)
    Launch(CurrentQueue(storage.device().index()), "resize",
           [=] { std::memcpy(ShadowOf(to), ShadowOf(from), kept); },
           {{from, kept, false}, {to, kept, true}});
  storage.set_data_ptr_noswap(std::move(data));
  storage.set_nbytes(bytes);
}

struct Hooks final : at::PrivateUse1HooksInterface {
  bool isBuilt() const override { return true; }
  bool isAvailable() const override { return DeviceCount() > 0; }
  bool hasPrimaryContext(DeviceIndex) const override { return true; }
  DeviceIndex deviceCount() const override { return static_cast<DeviceIndex>(DeviceCount()); }
  DeviceIndex getCurrentDevice() const override { return Current(); }
  void setCurrentDevice(DeviceIndex device) const override { CurrentDevice() = device; }
  DeviceIndex exchangeDevice(DeviceIndex device) const override {
    return static_cast<DeviceIndex>(std::exchange(CurrentDevice(), device));
  }
  DeviceIndex maybeExchangeDevice(DeviceIndex device) const override {
    return exchangeDevice(device);
  }
  // Returns the CPU's generator for random numbers.
  const at::Generator& getDefaultGenerator(DeviceIndex) const override {
    return at::globalContext().defaultGenerator(c10::kCPU);
  }
  Device getDeviceFromPtr(void* data) const override {
    return Device(kPrivateUse1, static_cast<DeviceIndex>(DeviceAt(data)));
  }
  bool isPinnedPtr(const void* data) const override { return IsPinned(data); }
  at::Allocator* getPinnedMemoryAllocator() const override { return &pinned_memory; }
  void resizePrivateUse1Bytes(const c10::Storage& storage, size_t bytes) const override {
    GrowStorage(storage, bytes);
  }
};

at::Tensor EmptyMemoryFormat(at::IntArrayRef sizes, std::optional<at::ScalarType> type,
                             std::optional<at::Layout>, std::optional<Device> device,
                             std::optional<bool>, std::optional<at::MemoryFormat> format) {
  c10::DeviceGuard guard(DeviceOr(device));
  return at::detail::empty_generic(sizes, &device_memory,
                                   c10::DispatchKeySet(c10::DispatchKey::PrivateUse1),
                                   c10::dtype_or_default(type), format);
}

at::Tensor EmptyWithStrides(at::IntArrayRef sizes, at::IntArrayRef strides,
                            std::optional<at::ScalarType> type, std::optional<at::Layout>,
                            std::optional<Device> device, std::optional<bool>) {
  return EmptyStrided(sizes, strides, c10::dtype_or_default(type), DeviceOr(device));
}

// Copies on the source's stream, for which the destination's waits, as on CUDA.
void CopyBetweenDevices(const at::Tensor& from, const at::Tensor& to) {
  Queue &reader = CurrentQueue(from.device().index()), &writer = CurrentQueue(to.device().index());
  if (&reader != &writer) Block(reader, Record(writer));
  Launch(reader, "copy", [a = ShadowTensor(from), b = ShadowTensor(to)] { b.copy_(a); },
         {AccessOf(from, false), AccessOf(to, true)});
  if (&reader != &writer) Block(writer, Record(reader));
}

// The stream reads pinned memory later; for memory that is not, CUDA may wait for the stream.
void CopyFromHost(const at::Tensor& from, const at::Tensor& to, bool non_blocking) {
  Queue& queue = CurrentQueue(to.device().index());
  Launch(queue, "copy from the host", [from, b = ShadowTensor(to)] { b.copy_(from); },
         {AccessOf(to, true)});
  if (non_blocking && IsPinned(from.const_data_ptr())) return;
  ++host_waits.copies;
  Synchronize(queue);
}

// Fills the destination with NaNs first, for readers that do not wait for the stream.
void CopyToHost(const at::Tensor& from, const at::Tensor& to, bool non_blocking) {
  if (to.is_non_overlapping_and_dense()) std::memset(to.mutable_data_ptr(), 0xff, to.nbytes());
  Queue& queue = CurrentQueue(from.device().index());
  Launch(queue, "copy to the host", [a = ShadowTensor(from), to] { to.copy_(a); },
         {AccessOf(from, false)});
  if (non_blocking && IsPinned(to.const_data_ptr())) return;
  ++host_waits.copies;
  Synchronize(queue);
}

at::Tensor CopyFrom(const at::Tensor& from, const at::Tensor& to, bool non_blocking) {
  const at::Tensor source = from.expand_as(to);
  if (to.numel() == 0) return to;
  if (!IsOfDevice(from))
    CopyFromHost(source, to, non_blocking);
  else if (!IsOfDevice(to))
    CopyToHost(source, to, non_blocking);
  else
    CopyBetweenDevices(source, to);
  return to;
}

at::Tensor CopyFromAndResize(const at::Tensor& from, const at::Tensor& to) {
  if (to.sizes() != from.sizes()) Resize(to, from.sizes());
  return CopyFrom(from, to, false);
}

// Views share memory, so none of them uses RunOnStream.
TORCH_LIBRARY_IMPL(aten, PrivateUse1, m) {
  m.impl("empty.memory_format", EmptyMemoryFormat);
  m.impl("empty_strided", EmptyWithStrides);
  m.impl("resize_", Resize);
  m.impl("_copy_from", CopyFrom);
  m.impl("_copy_from_and_resize", CopyFromAndResize);
  m.impl("_local_scalar_dense", [](const at::Tensor& self) { return self.cpu().item(); });
  m.impl("record_stream", [](at::Tensor& self, Stream stream) {
    RecordStream(self.storage().data(), sim::QueueOf(stream));
  });
  m.impl("as_strided", [](const at::Tensor& self, at::IntArrayRef sizes, at::IntArrayRef strides,
                          std::optional<int64_t> offset) {
    return at::native::as_strided_tensorimpl(self, sizes, strides, offset);
  });
  m.impl("view", [](const at::Tensor& self, at::IntArrayRef sizes) {
    return at::native::view(self, sizes);
  });
  m.impl("_reshape_alias",
         [](const at::Tensor& self, at::IntArrayRef sizes, at::IntArrayRef strides) {
           return at::native::_reshape_alias(self, sizes, strides);
         });
  m.impl("view.dtype", at::native::view_dtype);
  m.impl("unfold", at::native::unfold);
  m.impl("view_as_real", at::native::view_as_real);
  m.impl("view_as_complex", at::native::view_as_complex);
  m.impl("set_.source_Tensor", [](at::Tensor& self, const at::Tensor& source) -> at::Tensor& {
    return at::native::set_tensor_(self, source);
  });
  m.impl("set_.source_Storage", [](at::Tensor& self, at::Storage source) -> at::Tensor& {
    return at::native::set_(self, std::move(source));
  });
  m.impl("set_.source_Storage_storage_offset",
         [](at::Tensor& self, at::Storage source, int64_t offset, at::IntArrayRef sizes,
            at::IntArrayRef strides) -> at::Tensor& {
           return at::native::set_storage_cpu_(self, std::move(source), offset, sizes, strides);
         });
}

// CopyFrom sees to conjugation and negation; LibTorch's fallback would copy, and so call it again.
TORCH_LIBRARY_IMPL(aten, Conjugate, m) {
  m.impl("_copy_from", torch::CppFunction::makeFallthrough());
}
TORCH_LIBRARY_IMPL(aten, Negative, m) {
  m.impl("_copy_from", torch::CppFunction::makeFallthrough());
}

// Initialized last: LibTorch's operators exist by then, because this library depends on it.
[[maybe_unused]] const bool registered = [] {
  static Hooks hooks;
  c10::register_privateuse1_backend("sim");
  at::RegisterPrivateUse1HooksInterface(&hooks);
  RegisterOperators();
  return true;
}();

}  // namespace

Queue& CurrentQueue(DeviceIndex device) {
  if (device < 0) device = Current();
  Queue*& current = t_queues.at(static_cast<size_t>(device));
  if (!current) current = QueueOf(device, 0);
  return *current;
}

Queue& QueueOf(const Stream& stream) { return *QueueOf(stream.device_index(), stream.id()); }

bool IsOfDevice(const at::Tensor& tensor) { return tensor.is_privateuseone(); }

at::Tensor EmptyStrided(at::IntArrayRef sizes, at::IntArrayRef strides, at::ScalarType type,
                        Device device) {
  c10::DeviceGuard guard(device);
  return at::detail::empty_strided_generic(
      sizes, strides, &device_memory, c10::DispatchKeySet(c10::DispatchKey::PrivateUse1), type);
}

const at::Tensor& Resize(const at::Tensor& tensor, at::IntArrayRef sizes,
                         std::optional<at::MemoryFormat>) {
  tensor.unsafeGetTensorImpl()->set_sizes_contiguous(sizes);
  const auto bytes =
      static_cast<size_t>(tensor.storage_offset() + tensor.numel()) * tensor.element_size();
  if (bytes > tensor.storage().nbytes()) GrowStorage(tensor.storage(), bytes);
  return tensor;
}

size_t Extent(const at::Tensor& tensor) {
  return at::detail::computeStorageNbytes(tensor.sizes(), tensor.strides(), tensor.element_size());
}

Access AccessOf(const at::Tensor& tensor, bool writes) {
  const auto* storage = static_cast<const char*>(tensor.storage().data());
  const auto offset = static_cast<size_t>(tensor.storage_offset()) * tensor.element_size();
  return {storage ? storage + offset : nullptr, tensor.numel() > 0 ? Extent(tensor) : 0, writes};
}

at::Tensor ShadowTensor(const at::Tensor& tensor) {
  at::Tensor shadow = at::from_blob(ShadowOf(AccessOf(tensor, false).begin), tensor.sizes(),
                                    tensor.strides(), at::TensorOptions(tensor.scalar_type()));
  // copy_ gets tensors whose conjugation or negation is due.
  shadow._set_conj(tensor.is_conj());
  shadow._set_neg(tensor.is_neg());
  return shadow;
}

}  // namespace sim
