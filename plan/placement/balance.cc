// A part of place.h: the policy "balanced".
#include <algorithm>
#include <limits>

#include "plan/placement/place.h"

namespace pipewright {

namespace {

// Returns true if the atoms fit in order when no device takes more than min(limit, cap).
bool FitsInOrder(const std::vector<Atom>& atoms, const std::vector<int64_t>& limits, int64_t cap) {
  size_t next = 0;
  for (int64_t limit : limits) {
    AtomLoad load;
    while (next < atoms.size() && load.With(atoms[next]) <= std::min(limit, cap))
      load.Add(atoms[next++]);
  }
  return next == atoms.size();
}

}  // namespace

int64_t AtomLoad::With(const Atom& atom) const {
  int64_t sum = bytes + atom.bytes;
  for (const auto& [buffer, size] : atom.shared)
    if (!shared.count(buffer)) sum += size;
  return sum;
}

void AtomLoad::Add(const Atom& atom) {
  bytes = With(atom);
  for (const auto& [buffer, size] : atom.shared) shared.insert(buffer);
}

std::vector<int> BalanceInOrder(const std::vector<Atom>& atoms,
                                const std::vector<int64_t>& limits) {
  int64_t total = SharedBytes(atoms), low = 0;
  for (const Atom& atom : atoms)
    total += atom.bytes, low = std::max(low, AtomLoad().With(atom));
  if (!FitsInOrder(atoms, limits, total)) return {};
  int64_t high = total;
  while (low < high) {  // bisects for the smallest possible largest load
    int64_t middle = low + (high - low) / 2;
    if (FitsInOrder(atoms, limits, middle))
      high = middle;
    else
      low = middle + 1;
  }
  // best[d][n] is the least sum of squared loads of the first n atoms on the first d devices with
  // no load above `low`.
  const double kNever = std::numeric_limits<double>::infinity();
  size_t n = atoms.size(), devices = limits.size();
  std::vector<double> best(n + 1, kNever);
  best[0] = 0;
  std::vector<std::vector<uint32_t>> from(devices, std::vector<uint32_t>(n + 1, 0));
  for (size_t d = 0; d < devices; ++d) {
    std::vector<double> next(n + 1, kNever);
    for (size_t end = 0; end <= n; ++end) {
      AtomLoad load;
      for (size_t begin = end;; --begin) {
        double share = static_cast<double>(load.bytes);
        double cost = best[begin] + share * share;
        if (cost < next[end]) next[end] = cost, from[d][end] = static_cast<uint32_t>(begin);
        if (begin == 0) break;
        load.Add(atoms[begin - 1]);
        if (load.bytes > std::min(low, limits[d])) break;
      }
    }
    best = next;
  }
  std::vector<int> device(n);
  size_t end = n;
  for (size_t d = devices; d-- > 0;) {
    for (size_t i = from[d][end]; i < end; ++i) device[i] = static_cast<int>(d);
    end = from[d][end];
  }
  return device;
}

}  // namespace pipewright
