// Progress of transfers while operations run.
#pragma once
#include "runtime/exec/transport.h"

namespace pipewright {

// As long as it lives, every CPU tensor that its thread allocates, so nearly every operation,
// forward or backward, calls `transport.Progress()` first. Lives on the stack of what computes; may
// be nested. From the first of them on, the process's CPU allocator is one that passes all else to
// the one before it. (An at::RecordFunction callback knows operations better, and made the stages
// of a small MLP 9 % slower.)
class ProgressHook {
 public:
  explicit ProgressHook(Transport& transport);
  ~ProgressHook();
  ProgressHook(const ProgressHook&) = delete;

 private:
  Transport* const before_;
};

}  // namespace pipewright
