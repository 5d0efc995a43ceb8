// Bit sets of small numbers, for searches over sets of nodes.
#pragma once
#include <stddef.h>
#include <cstdint>
#include <vector>

namespace pipewright {

using Bits = std::vector<uint64_t>;

inline Bits MakeBits(int size) { return Bits((static_cast<size_t>(size) + 63) / 64, 0); }
inline bool Has(const Bits& set, int i) { return set[i >> 6] >> (i & 63) & 1; }
inline void Insert(Bits& set, int i) { set[i >> 6] |= uint64_t{1} << (i & 63); }
inline void Erase(Bits& set, int i) { set[i >> 6] &= ~(uint64_t{1} << (i & 63)); }
inline void Unite(Bits& set, const Bits& other) {
  for (size_t w = 0; w < set.size(); ++w) set[w] |= other[w];
}
inline bool IsSubset(const Bits& inner, const Bits& outer) {
  for (size_t w = 0; w < inner.size(); ++w)
    if (inner[w] & ~outer[w]) return false;
  return true;
}

// Calls visit(i) for each member, ascending.
template <typename Visit>
void ForEach(const Bits& set, Visit visit) {
  for (size_t w = 0; w < set.size(); ++w)
    for (uint64_t word = set[w]; word; word &= word - 1)
      visit(static_cast<int>(w * 64) + __builtin_ctzll(word));
}

struct BitsHash {
  size_t operator()(const Bits& set) const {
    uint64_t h = 0x9e3779b97f4a7c15ull;
    for (uint64_t word : set) {
      h ^= word;
      h *= 0xff51afd7ed558ccdull;
      h ^= h >> 32;
    }
    return h;
  }
};

}  // namespace pipewright
