// Measures latency and bandwidth of the links between ranks.
#pragma once
#include <c10/core/Device.h>

#include <vector>

#include "formats/profile/profile.h"
#include "runtime/exec/transport.h"

namespace pipewright {

// Measures the link between two ranks while the others wait. The latency is half the round trip of
// one byte; the bandwidth is that of `bytes` beyond this time. Takes the fastest of `repeat`
// rounds, and of a hundred for the latency. Returns the same on every rank. Collective.
//
// `device`: where this rank computes. The bytes travel from device to device, through host memory
// if the transport takes nothing else; the answer always travels through host memory.
ProfileLink MeasureLink(Transport& transport, int from, int to, int repeat = 20,
                        size_t bytes = size_t{4} << 20, c10::Device device = c10::kCPU);

// Measures every ordered pair of ranks, one after the other. Collective.
std::vector<ProfileLink> MeasureLinks(Transport& transport, int repeat = 20,
                                      size_t bytes = size_t{4} << 20,
                                      c10::Device device = c10::kCPU);

}  // namespace pipewright
