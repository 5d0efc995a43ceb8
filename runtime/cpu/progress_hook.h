// ProgressHook lets transfers make progress while operations run.
#pragma once
#include "runtime/exec/transport.h"

namespace pipewright {

// While it exists, every CPU tensor that its thread allocates, and so nearly every operation,
// forward or backward, first calls `transport.Progress()`. Belongs on the stack of the computing
// code; may be nested. The first one replaces the process's CPU allocator by one that forwards to
// the previous one. (An at::RecordFunction callback sees operations more directly but made the
// stages of a small MLP 9 % slower.)
class ProgressHook {
 public:
  explicit ProgressHook(Transport& transport);
  ~ProgressHook();
  ProgressHook(const ProgressHook&) = delete;

 private:
  Transport* const before_;
};

}  // namespace pipewright
