// How fast the links between ranks are.
#pragma once
#include <vector>

#include "plan/profile/profile.h"
#include "runtime/exec/transport.h"

namespace pipewright {

// From one rank to another while the rest waits: latency is half of one byte's way there and back,
// bandwidth that of `bytes` beyond it; of the fastest of `repeat`. The same on every rank.
// Collective.
ProfileLink MeasureLink(Transport& transport, int from, int to, int repeat = 20,
                        size_t bytes = size_t{4} << 20);

// Every ordered pair of ranks, one after the other. Collective.
std::vector<ProfileLink> MeasureLinks(Transport& transport, int repeat = 20,
                                      size_t bytes = size_t{4} << 20);

}  // namespace pipewright
