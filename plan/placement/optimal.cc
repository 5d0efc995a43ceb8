#include <algorithm>
#include <numeric>

#include "plan/placement/place.h"

namespace pipewright {

namespace {

// A reachable sum, and how: the sum before and the atom added.
struct Sum {
  int64_t bytes;
  int before, atom;
};

// The atoms among `candidates` whose sum is the largest within `limit`: every reachable sum is
// kept, up to a bound; beyond it only the larger ones.
std::vector<int> FillOne(const std::vector<Atom>& atoms, const std::vector<int>& candidates,
                         int64_t limit) {
  constexpr size_t kMost = 1 << 17;
  std::vector<Sum> sums = {{0, -1, -1}};  // all that were ever reached
  std::vector<int> reachable = {0};       // into sums, ascending in bytes
  for (int atom : candidates) {
    int64_t bytes = atoms[static_cast<size_t>(atom)].bytes;
    if (bytes > limit) continue;
    std::vector<int> merged;
    size_t kept = 0;
    for (int with : reachable) {
      int64_t sum = sums[static_cast<size_t>(with)].bytes + bytes;
      if (sum > limit) break;
      while (kept < reachable.size() && sums[static_cast<size_t>(reachable[kept])].bytes < sum)
        merged.push_back(reachable[kept++]);
      if (kept < reachable.size() && sums[static_cast<size_t>(reachable[kept])].bytes == sum)
        continue;
      merged.push_back(static_cast<int>(sums.size()));
      sums.push_back({sum, with, atom});
    }
    merged.insert(merged.end(), reachable.begin() + static_cast<long>(kept), reachable.end());
    if (merged.size() > kMost) merged.erase(merged.begin(), merged.end() - kMost);
    reachable = merged;
    if (sums[static_cast<size_t>(reachable.back())].bytes == limit || sums.size() > 50 * kMost)
      break;
  }
  std::vector<int> chosen;
  for (int at = reachable.back(); sums[static_cast<size_t>(at)].atom >= 0;
       at = sums[static_cast<size_t>(at)].before)
    chosen.push_back(sums[static_cast<size_t>(at)].atom);
  return chosen;
}

// Depth-first over the atoms from the largest, each to every distinct device or nowhere, for as
// long as `steps` last. Finds what filling device by device misses.
struct Search {
  const std::vector<Atom>& atoms;
  std::vector<int> order;     // atoms, largest first
  std::vector<int64_t> rest;  // bytes of order[i..]
  std::vector<int64_t> room;  // by device
  std::vector<int> place, best;
  int64_t best_bytes = -1;
  int64_t steps = 300000;

  void Run() {
    int64_t total = rest[0];
    // An explicit stack: the option tried last at each depth (devices, then nowhere).
    std::vector<int> option(order.size() + 1, -1);
    size_t depth = 0;
    int64_t bytes = 0;
    while (steps-- > 0) {
      int64_t possible = std::accumulate(room.begin(), room.end(), int64_t{0});
      bool dead = bytes + std::min(rest[depth], possible) <= best_bytes;
      if (depth == order.size() && bytes > best_bytes) best_bytes = bytes, best = place;
      if (best_bytes == total) return;
      if (depth == order.size() || dead) {
        if (depth == 0) return;
        --depth;
      }
      // Undo what this depth holds, then its next option.
      while (true) {
        size_t atom = static_cast<size_t>(order[depth]);
        int devices = static_cast<int>(room.size());
        int& choice = option[depth];
        if (choice >= 0 && choice < devices) {
          room[static_cast<size_t>(choice)] += atoms[atom].bytes;
          bytes -= atoms[atom].bytes;
        }
        place[atom] = -1;
        for (++choice; choice < devices; ++choice) {
          size_t c = static_cast<size_t>(choice);
          // Devices with equal room are the same to the search.
          bool same =
              std::find(room.begin(), room.begin() + choice, room[c]) != room.begin() + choice;
          if (!same && room[c] >= atoms[atom].bytes) break;
        }
        if (choice < devices) {
          room[static_cast<size_t>(choice)] -= atoms[atom].bytes;
          bytes += atoms[atom].bytes;
          place[atom] = choice;
        }
        if (choice <= devices) break;
        option[depth] = -1;
        if (depth == 0) return;
        --depth;
      }
      option[++depth] = -1;
    }
  }
};

int64_t Resident(const std::vector<Atom>& atoms, const std::vector<int>& place) {
  int64_t bytes = 0;
  for (size_t i = 0; i < atoms.size(); ++i)
    if (place[i] >= 0) bytes += atoms[i].bytes;
  return bytes;
}

}  // namespace

std::vector<int> MostResident(const std::vector<Atom>& atoms, const std::vector<int64_t>& limits) {
  int64_t total = 0, room = 0;
  for (const Atom& atom : atoms) total += atom.bytes;
  for (int64_t limit : limits) room += std::min(limit, total);
  // In contiguous runs, where everything fits so.
  std::vector<int> place = BalanceInOrder(atoms, limits);
  if (!place.empty() || atoms.empty()) return place;
  // Device by device: first the one with the least room, which is the hardest to fill well.
  place.assign(atoms.size(), -1);
  std::vector<int> devices(limits.size()), left(atoms.size());
  std::iota(devices.begin(), devices.end(), 0);
  std::iota(left.begin(), left.end(), 0);
  auto limit_of = [&](int d) { return limits[static_cast<size_t>(d)]; };
  std::stable_sort(devices.begin(), devices.end(),
                   [&](int a, int b) { return limit_of(a) < limit_of(b); });
  for (int device : devices) {
    for (int atom : FillOne(atoms, left, limit_of(device)))
      place[static_cast<size_t>(atom)] = device;
    left.erase(std::remove_if(left.begin(), left.end(),
                              [&](int atom) { return place[static_cast<size_t>(atom)] >= 0; }),
               left.end());
  }
  int64_t found = Resident(atoms, place);
  if (limits.size() < 2 || found == std::min(total, room)) return place;
  Search search{atoms, {}, {}, limits, std::vector<int>(atoms.size(), -1), place, found};
  search.order.resize(atoms.size());
  std::iota(search.order.begin(), search.order.end(), 0);
  std::stable_sort(search.order.begin(), search.order.end(), [&](int a, int b) {
    return atoms[static_cast<size_t>(a)].bytes > atoms[static_cast<size_t>(b)].bytes;
  });
  search.rest.assign(atoms.size() + 1, 0);
  for (size_t i = atoms.size(); i-- > 0;)
    search.rest[i] = search.rest[i + 1] + atoms[static_cast<size_t>(search.order[i])].bytes;
  search.Run();
  return search.best;
}

}  // namespace pipewright
