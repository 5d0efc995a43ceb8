// Counts the bytes of tensors that one thread has allocated and not yet freed.
#pragma once
#include <cstdint>
#include <memory>

namespace pipewright {

// Counts CPU tensors that the creating thread allocates and frees while the meter exists. Tensors
// freed by another thread stay counted. Must be destroyed on the same thread.
class MemoryMeter {
 public:
  MemoryMeter();
  ~MemoryMeter();

  int64_t live() const;  // negative if earlier tensors were freed
  int64_t peak() const;  // since construction or ResetPeak
  void ResetPeak();

 private:
  struct Counter;
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace pipewright
