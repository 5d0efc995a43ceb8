// Operations of the fake NCCL, as they run in the thread of a stream.
#pragma once
#include <cstddef>
#include <vector>

#include "communicator.h"

namespace fake_nccl {

enum class OperationKind { kSend, kRecv, kAllReduce, kBroadcast };

struct FakeOperation {
  OperationKind kind = OperationKind::kSend;
  int peer = -1;               // or the root of a broadcast
  const void* from = nullptr;  // addresses of the device
  void* to = nullptr;
  size_t count = 0;
  int type = 0;
  int operation = 0;  // an NcclOperation
};

// Runs the operations of a group: each peer's sends, each peer's receives, and the collective
// operations are in order, and all of these progress at once. An error is kept in the communicator.
void RunOperations(Communicator& comm, const std::vector<FakeOperation>& operations);

// Returns where the host's threads find memory of the device.
char* ShadowOfDevice(const void* address);

}  // namespace fake_nccl
