// A part of place.h: the policy "optimal".
#include <algorithm>
#include <numeric>

#include "plan/placement/place.h"

namespace pipewright {

namespace {

// A reachable sum, with the sum before it and the atom that was added.
struct Sum {
  int64_t bytes;
  int before, atom;
};

// Returns those of `candidates` whose sizes have the largest sum within `limit`. Keeps every
// reachable sum up to a bound, and beyond it only the larger ones.
std::vector<int> FillOne(const std::vector<int64_t>& sizes, const std::vector<int>& candidates,
                         int64_t limit) {
  constexpr size_t kMost = 1 << 17;
  std::vector<Sum> sums = {{0, -1, -1}};  // all that were ever reached
  std::vector<int> reachable = {0};       // into sums, ascending in bytes
  for (int atom : candidates) {
    int64_t bytes = sizes[static_cast<size_t>(atom)];
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

// Returns the bytes of an atom that always stay on a device.
int64_t Buffers(const Stay& stay) { return stay.bytes - stay.travels; }

// Searches depth first over the atoms from the largest, each on every distinct device or nowhere,
// until `steps` are used up. Finds placements that filling device by device misses.
struct Search {
  const std::vector<Stay>& stays;
  std::vector<int64_t> room;    // by device
  std::vector<int> best;        // empty: none yet
  int64_t best_bytes = -1;      // the most bytes that stay resident
  std::vector<int> order{};     // atoms, largest first
  std::vector<int64_t> rest{};  // [i] sum of `travels` over order[i..]
  std::vector<int> place{};     // by atom
  int64_t steps = 300000;

  void Run() {
    order.resize(stays.size());
    std::iota(order.begin(), order.end(), 0);
    std::stable_sort(order.begin(), order.end(),
                     [&](int a, int b) { return At(a).travels > At(b).travels; });
    rest.assign(stays.size() + 1, 0);
    for (size_t i = stays.size(); i-- > 0;) rest[i] = rest[i + 1] + At(order[i]).travels;
    place.assign(stays.size(), -1);
    // Devices with equal room are equivalent, except the one with the buffers.
    bool buffers = false;
    for (const Stay& stay : stays) buffers = buffers || Buffers(stay) > 0;
    const int alike = buffers ? 1 : 0, devices = static_cast<int>(room.size());
    // The stack is explicit: the last option tried at each depth (devices, then nowhere).
    std::vector<int> option(order.size() + 1, -1);
    size_t depth = 0;
    int64_t bytes = 0;
    while (steps-- > 0) {
      int64_t possible = std::accumulate(room.begin(), room.end(), int64_t{0});
      bool dead = bytes + std::min(rest[depth], possible) <= best_bytes;
      if (depth == order.size() && bytes > best_bytes) best_bytes = bytes, best = place;
      if (best_bytes == rest[0]) return;
      if (depth == order.size() || dead) {
        if (depth == 0) return;
        --depth;
      }
      // Undoes what this depth holds, then tries its next option.
      while (true) {
        const int atom = order[depth];
        const Stay& stay = At(atom);
        int& choice = option[depth];
        if (choice >= 0) Take(stay, choice, -1, bytes);
        place[static_cast<size_t>(atom)] = -1;
        for (++choice; choice < devices; ++choice) {
          const int64_t left = room[static_cast<size_t>(choice)];
          const auto from = room.begin() + std::min(choice, alike), to = room.begin() + choice;
          if (std::find(from, to, left) == to && left >= stay.bytes) break;
        }
        if (choice == devices && (stay.must || room[0] < Buffers(stay))) ++choice;
        if (choice <= devices) {
          Take(stay, choice, 1, bytes);
          if (choice < devices) place[static_cast<size_t>(atom)] = choice;
          break;
        }
        option[depth] = -1;
        if (depth == 0) return;
        --depth;
      }
      option[++depth] = -1;
    }
  }

 private:
  const Stay& At(int atom) const { return stays[static_cast<size_t>(atom)]; }
  void Take(const Stay& stay, int choice, int sign, int64_t& bytes) {
    if (static_cast<size_t>(choice) < room.size()) {
      room[static_cast<size_t>(choice)] -= sign * stay.bytes;
      bytes += sign * stay.travels;
    } else {
      room[0] -= sign * Buffers(stay);
    }
  }
};

}  // namespace

std::vector<int> MostResident(const std::vector<Stay>& stays, const std::vector<int64_t>& limits) {
  std::vector<int> place(stays.size(), -1), devices(limits.size());
  if (limits.empty()) {
    for (const Stay& stay : stays)
      if (stay.must) return {};
    return place;
  }
  // Places the atoms that must stay, then the rest. Fills devices one by one from the one with the
  // least room, which is the hardest to fill well. The first device also holds the buffers of atoms
  // that are not resident.
  std::vector<int64_t> room = limits, bytes, travels;
  int64_t total = 0;
  for (const Stay& stay : stays) {
    bytes.push_back(stay.bytes);
    travels.push_back(stay.travels);
    room[0] -= Buffers(stay);
    total += stay.travels;
  }
  std::iota(devices.begin(), devices.end(), 0);
  std::stable_sort(devices.begin(), devices.end(), [&](int a, int b) {
    return limits[static_cast<size_t>(a)] < limits[static_cast<size_t>(b)];
  });
  for (bool must : {true, false})
    for (int device : devices) {
      std::vector<int> left;
      for (size_t i = 0; i < stays.size(); ++i)
        if (place[i] < 0 && stays[i].must == must) left.push_back(static_cast<int>(i));
      int64_t& here = room[static_cast<size_t>(device)];
      const std::vector<int64_t>& sizes = device == 0 ? travels : bytes;
      for (int atom : FillOne(sizes, left, here)) {
        const Stay& stay = stays[static_cast<size_t>(atom)];
        place[static_cast<size_t>(atom)] = device;
        here -= sizes[static_cast<size_t>(atom)];
        if (device > 0) room[0] += Buffers(stay);
      }
    }
  int64_t found = 0;
  bool fits = room[0] >= 0;
  for (size_t i = 0; i < stays.size(); ++i) {
    if (place[i] >= 0) found += stays[i].travels;
    fits = fits && (place[i] >= 0 || !stays[i].must);
  }
  const int64_t most = std::accumulate(
      limits.begin(), limits.end(), int64_t{0},
      [&](int64_t sum, int64_t limit) { return std::min(total, sum + std::min(total, limit)); });
  if (limits.size() < 2 || (fits && found == most)) return fits ? place : std::vector<int>();
  if (*std::min_element(limits.begin(), limits.end()) < 0) return {};
  Search search{stays, limits, fits ? place : std::vector<int>(), fits ? found : -1};
  search.Run();
  return search.best;
}

std::vector<int> MostResident(const std::vector<Atom>& atoms, const std::vector<int64_t>& limits) {
  // Uses contiguous runs if everything fits that way.
  std::vector<int> place = BalanceInOrder(atoms, limits);
  if (!place.empty() || atoms.empty()) return place;
  std::vector<Stay> stays;
  for (const Atom& atom : atoms) stays.push_back({atom.bytes, atom.bytes, false});
  std::vector<int64_t> left = limits;
  for (int64_t& limit : left) limit -= SharedBytes(atoms);
  if (std::any_of(left.begin(), left.end(), [](int64_t limit) { return limit < 0; }))
    return std::vector<int>(atoms.size(), -1);
  return MostResident(stays, left);
}

}  // namespace pipewright
