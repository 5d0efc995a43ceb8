// Bytes of tensors that one thread has allocated and not yet freed.
#pragma once
#include <cstdint>
#include <memory>

namespace pipewright {

// Counts CPU tensors that the thread which made the meter allocates and frees while the meter is
// there. What another thread frees stays counted. Ends on the thread where it began.
class MemoryMeter {
 public:
  MemoryMeter();
  ~MemoryMeter();

  int64_t live() const;  // below zero when tensors from before were freed
  int64_t peak() const;  // since the meter was made, or since ResetPeak
  void ResetPeak();

 private:
  struct Counter;
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace pipewright
