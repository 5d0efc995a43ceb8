// Compares sizes of messages and words the errors for two ranks that disagree about them.
#pragma once
#include <string>

#include "runtime/exec/transport.h"

namespace pipewright {

inline size_t TotalBytes(const Bundle& bundle) {
  size_t bytes = 0;
  for (const Region& region : bundle.regions) bytes += region.bytes;
  return bytes;
}

inline std::string SizeText(size_t bytes, size_t parts) {
  return std::to_string(bytes) + " bytes" +
         (parts == 1 ? "" : " in " + std::to_string(parts) + " parts");
}
inline std::string SizeText(const Bundle& bundle) {
  return SizeText(TotalBytes(bundle), bundle.regions.size());
}

// Returns the error text for a receive that got a message of another size than it was posted for.
inline std::string SizeError(const std::string& arrived, const std::string& expected) {
  return "a message of " + arrived + " arrived where " + expected + " were expected";
}

// Returns "" if `from` fits into `to`, region by region.
inline std::string SizeMismatch(const Bundle& from, const Bundle& to) {
  bool same = from.regions.size() == to.regions.size();
  for (size_t i = 0; same && i < from.regions.size(); ++i)
    same = from.regions[i].bytes == to.regions[i].bytes;
  if (same) return "";
  return SizeError(SizeText(from), SizeText(to));
}

}  // namespace pipewright
