#include "runtime/measure/links.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstring>

#include "runtime/exec/clock.h"
#include "runtime/module/messages.h"
#include "runtime/stage/device_clock.h"
#include "tensors/device_memory.h"

namespace pipewright {

namespace {

// On a busy machine, one small message in many finds both ranks awake: others take hundreds of
// times as long.
constexpr int kSmallRounds = 100;

Bundle Bytes(size_t bytes, c10::Device device) {
  return MakeBundle({at::ones({static_cast<int64_t>(bytes)}, at::device(device).dtype(at::kByte))});
}

// Measures, at the sender, `there` bytes to the peer and one byte back. Returns the seconds of each
// round, ascending; the first one is a warm-up.
std::vector<double> RoundTrips(Transport& transport, int from, int to, size_t there, int repeat,
                               c10::Device device) {
  std::vector<double> rounds;
  const bool direct = transport.TakesDevices(transport.rank() == from ? to : from);
  const Bundle mine = Bytes(there, device), back = Bytes(1, c10::kCPU);
  const Bundle staged = Bytes(there, c10::kCPU);  // as it is received
  DeviceClock clock(device);
  for (int i = 0; i <= repeat; ++i) {
    if (transport.rank() == from) {
      // The answer is what is measured: a send completes with a message of its own.
      const Token answer = transport.Recv(to, 0, back);
      double start = Now();
      const Token sent = transport.Send(to, 0, direct ? mine : MessageOnHost(mine));
      transport.WaitFor(answer, {Awaited::kTensor, to});
      if (i > 0) rounds.push_back(Now() - start);
      transport.WaitFor(sent, {.kind = Awaited::kTensor, .rank = to, .sends = 1});
    } else {
      transport.WaitFor(transport.Recv(from, 0, direct ? mine : staged), {Awaited::kTensor, from});
      if (!direct) OnDevice(TensorsOf(staged)[0], device);
      clock.Await(transport, std::chrono::microseconds(0));  // a pause would be measured, too
      transport.WaitFor(transport.Send(from, 0, back),
                        {.kind = Awaited::kTensor, .rank = from, .sends = 1});
    }
  }
  std::sort(rounds.begin(), rounds.end());
  return rounds;
}

}  // namespace

ProfileLink MeasureLink(Transport& transport, int from, int to, int repeat, size_t bytes,
                        c10::Device device) {
  double figures[3] = {0, 0, 0};
  if (transport.rank() == from || transport.rank() == to) {
    const std::vector<double> small =
        RoundTrips(transport, from, to, 1, std::max(2 * repeat, kSmallRounds), device);
    const std::vector<double> large = RoundTrips(transport, from, to, bytes, repeat, device);
    if (transport.rank() == from) {
      // If noise hides the difference, the whole time of the large message counts.
      auto bandwidth = [&](double seconds) {
        return static_cast<double>(bytes) /
               (seconds > 1.1 * small[0] ? seconds - small[0] : seconds);
      };
      // The fastest rounds count, because other load can only slow a round down.
      figures[0] = small[0] / 2;
      figures[1] = bandwidth(large[0]);
      figures[2] = std::abs(bandwidth(large[large.size() / 4]) -
                            bandwidth(large[large.size() * 3 / 4]));
    }
  }
  std::string mine(reinterpret_cast<char*>(figures), sizeof figures);
  std::string senders = transport.AllGather(mine)[static_cast<size_t>(from)];
  std::memcpy(figures, senders.data(), sizeof figures);
  return {from, to, figures[0], figures[1], figures[2]};
}

std::vector<ProfileLink> MeasureLinks(Transport& transport, int repeat, size_t bytes,
                                      c10::Device device) {
  std::vector<ProfileLink> links;
  for (int from = 0; from < transport.size(); ++from)
    for (int to = 0; to < transport.size(); ++to)
      if (from != to) links.push_back(MeasureLink(transport, from, to, repeat, bytes, device));
  return links;
}

}  // namespace pipewright
