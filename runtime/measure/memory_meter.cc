#include "runtime/measure/memory_meter.h"

#include <c10/core/Allocator.h>
#include <c10/util/ThreadLocalDebugInfo.h>

#include <algorithm>

namespace pipewright {

struct MemoryMeter::Counter : c10::MemoryReportingInfoBase {
  void reportMemoryUsage(void*, int64_t bytes, size_t, size_t, c10::Device device) override {
    if (!device.is_cpu()) return;
    live += bytes;
    peak = std::max(peak, live);
  }
  bool memoryProfilingEnabled() const override { return true; }
  int64_t live = 0, peak = 0;
};

struct MemoryMeter::State {
  std::shared_ptr<Counter> counter = std::make_shared<Counter>();
  c10::DebugInfoGuard guard{c10::DebugInfoKind::PROFILER_STATE, counter};
};

MemoryMeter::MemoryMeter() : state_(std::make_unique<State>()) {}
MemoryMeter::~MemoryMeter() = default;
int64_t MemoryMeter::live() const { return state_->counter->live; }
int64_t MemoryMeter::peak() const { return state_->counter->peak; }
void MemoryMeter::ResetPeak() { state_->counter->peak = state_->counter->live; }

}  // namespace pipewright
