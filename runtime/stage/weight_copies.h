// Copies the buffers of a stream of weights to a device while it computes. Each buffer has a slot
// there, at a fixed address, which gets its copies on a stream of their own.
#pragma once
#include <ATen/core/Tensor.h>
#include <c10/core/Event.h>
#include <c10/core/Stream.h>

#include <cstdint>
#include <memory>
#include <vector>

namespace pipewright {

class WeightCopies {
 public:
  // Work that uses a slot must be launched on the stream that is current now.
  explicit WeightCopies(c10::Device device);

  // Allocates a buffer, numbered from 0, in host memory that the device reads asynchronously, and
  // its slot. It begins at a multiple of kBlock (runtime/disk/weight_layout.h).
  std::shared_ptr<void> Allocate(uint64_t bytes);

  // Copies the first `bytes` of a buffer to its slot, after what used the slot before Release.
  // Makes work that is launched on the current stream from now on come after the copy. The host does
  // not wait.
  void Copy(size_t buffer, uint64_t bytes);
  // Returns true if the buffer may change: its last copy, if there is one, is done.
  bool Copied(size_t buffer) const;
  // Lets the next copy overwrite the slot after all that the current stream has been given.
  void Release(size_t buffer);

  // Returns a new tensor of version 0 in a slot, where the copy of `in_buffer` lies.
  at::Tensor Tensor(size_t buffer, const char* in_buffer, at::IntArrayRef sizes,
                    at::ScalarType type) const;
  bool Holds(size_t buffer, const at::Tensor& tensor) const;

  int count() const { return count_; }  // of copies so far

 private:
  struct Slot {
    // Bytes. The current stream comes after each copy, so `device` may be freed at any time.
    at::Tensor host, device;
    c10::Event copied, released;
  };
  const c10::Device device_;
  const c10::Stream stream_;
  std::vector<Slot> slots_;
  int count_ = 0;
};

}  // namespace pipewright
