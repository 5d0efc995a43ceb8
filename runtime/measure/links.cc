#include "runtime/measure/links.h"

#include <algorithm>
#include <cstring>
#include <limits>

#include "runtime/exec/clock.h"

namespace pipewright {

namespace {

Bundle Message(size_t bytes) {
  auto memory = std::make_shared<std::vector<char>>(bytes, 1);
  return {{{memory->data(), bytes}}, memory};
}

// Measures, at the sender, `there` bytes to the peer and one byte back. Returns the fastest round,
// because other load can only slow a round down. The first round is a warm-up.
double RoundTrip(Transport& transport, int from, int to, size_t there, int repeat) {
  double best = std::numeric_limits<double>::infinity();
  Bundle out = Message(there), back = Message(1);
  for (int i = 0; i <= repeat; ++i) {
    if (transport.rank() == from) {
      double start = Now();
      transport.Wait(transport.Send(to, 0, out));
      transport.Wait(transport.Recv(to, 0, back));
      if (i > 0) best = std::min(best, Now() - start);
    } else {
      transport.Wait(transport.Recv(from, 0, out));
      transport.Wait(transport.Send(from, 0, back));
    }
  }
  return best;
}

}  // namespace

ProfileLink MeasureLink(Transport& transport, int from, int to, int repeat, size_t bytes) {
  double figures[2] = {0, 0};
  if (transport.rank() == from || transport.rank() == to) {
    double small = RoundTrip(transport, from, to, 1, 2 * repeat);
    double large = RoundTrip(transport, from, to, bytes, repeat);
    figures[0] = small / 2;
    // If noise hides the difference, the whole time of the large message counts.
    figures[1] = static_cast<double>(bytes) / (large > 1.1 * small ? large - small : large);
  }
  std::string mine(reinterpret_cast<char*>(figures), sizeof figures);
  std::string senders = transport.AllGather(mine)[static_cast<size_t>(from)];
  std::memcpy(figures, senders.data(), sizeof figures);
  return {from, to, figures[0], figures[1]};
}

std::vector<ProfileLink> MeasureLinks(Transport& transport, int repeat, size_t bytes) {
  std::vector<ProfileLink> links;
  for (int from = 0; from < transport.size(); ++from)
    for (int to = 0; to < transport.size(); ++to)
      if (from != to) links.push_back(MeasureLink(transport, from, to, repeat, bytes));
  return links;
}

}  // namespace pipewright
