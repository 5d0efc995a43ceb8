// Operations of the fake NCCL, as they run in the thread of a stream.
#pragma once
#include <cstddef>
#include <vector>

#include "communicator.h"

namespace fake_nccl {

enum class OperationKind { kSend, kRecv, kAllReduce };

struct FakeOperation {
  OperationKind kind = OperationKind::kSend;
  int peer = -1;
  const void* from = nullptr;  // addresses of the device
  void* to = nullptr;
  size_t count = 0;
  int type = 0;
};

// Returns the bytes of an element of an NcclType, or 0 if there is no such type here.
size_t BytesOfType(int type);

// Adds elements to others of a type; false if this fake does not add such a type.
bool AddElements(int type, void* into, const void* from, size_t count);

// Runs the operations of a group: each peer's sends and each peer's receives are in order, and all
// of these progress at once, but a group with sums has nothing else. An error is kept in the
// communicator.
void RunOperations(Communicator& comm, const std::vector<FakeOperation>& operations);

// Returns where the host's threads find memory of the device.
char* ShadowOfDevice(const void* address);

}  // namespace fake_nccl
