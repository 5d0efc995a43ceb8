// Runs work on all ranks together: if it fails on one, it fails on all.
#pragma once
#include <functional>
#include <string>

#include "runtime/exec/transport.h"

namespace pipewright {

// Runs `work`. If it throws on any rank, throws the same AgreedError on every rank, as Vote does;
// Aborted passes unchanged. `work` must not wait for a rank on which it may have failed.
// Collective.
void Phase(Transport& transport, const std::string& name, const std::function<void()>& work);

}  // namespace pipewright
