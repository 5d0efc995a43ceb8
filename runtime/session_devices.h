// Chooses the devices of a session's ranks, and connects them by NCCL.
#pragma once
#include <memory>
#include <string>
#include <vector>

#include "runtime/links/nccl_transport.h"
#include "runtime/session.h"

namespace pipewright {

// Returns the device of every rank, and makes this rank's the current one of this thread.
// `visible`: DevicesOfRanks. Collective.
std::vector<std::string> ChooseDevices(const Session& session,
                                       const std::vector<VisibleDevices>& visible);

// Throws Error if ranks with devices of different types hold copies of a trained weight.
void CheckCopiesOnDevices(const Session& session);

// Returns the ranks between which the session's values travel over NCCL: messages of its plans,
// gradients, and buffers of replicas. `forward`: its plan for validation; without ranks if there is
// none.
DevicePeers SessionPeers(const Session& session, const Plan& forward,
                         const std::vector<VisibleDevices>& visible);

// Connects the devices. Returns null if there are no peers. Collective.
std::unique_ptr<NcclTransport> Connect(const Session& session, const DevicePeers& peers);

}  // namespace pipewright
