// Counts the bytes of tensors that one thread has allocated and not yet freed.
#pragma once
#include <c10/core/Device.h>

#include <cstdint>
#include <memory>

namespace pipewright {

// Counts the tensors that the creating thread allocates and frees while the meter exists: those of
// the CPU, or, after Show, of accelerators. Tensors freed by another thread stay counted. Must be
// destroyed on the same thread.
class MemoryMeter {
 public:
  MemoryMeter();
  ~MemoryMeter();

  // Selects whether the figures are those of the CPU or of accelerators, which count from the
  // beginning, too.
  void Show(c10::Device device);

  int64_t live() const;  // negative if earlier tensors were freed
  int64_t peak() const;  // since construction or ResetPeak
  void ResetPeak();

 private:
  struct Counter;
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace pipewright
