// Work that all ranks try together: where it fails on one, it fails on all.
#pragma once
#include <functional>
#include <string>

#include "runtime/exec/transport.h"

namespace pipewright {

// Runs `work`, then compares notes: where it threw on any rank, throws on every rank the same
// AgreedError, as Vote does. Aborted passes as it is. `work` must not wait for a rank on which it
// may have failed. Collective.
void Phase(Transport& transport, const std::string& name, const std::function<void()>& work);

}  // namespace pipewright
