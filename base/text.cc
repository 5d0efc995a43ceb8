#include "base/text.h"

#include <algorithm>
#include <cctype>
#include <cstdio>
#include <numeric>
#include <utility>

namespace pipewright {

std::string Join(const std::vector<std::string>& parts, std::string_view separator) {
  std::string out;
  for (size_t i = 0; i < parts.size(); ++i) {
    if (i) out += separator;
    out += parts[i];
  }
  return out;
}

std::vector<std::string> Split(std::string_view text, char separator) {
  std::vector<std::string> parts;
  size_t begin = 0;
  while (true) {
    size_t end = text.find(separator, begin);
    parts.emplace_back(text.substr(begin, end - begin));
    if (end == std::string_view::npos) return parts;
    begin = end + 1;
  }
}

// Counts letters deleted, inserted or replaced, and neighbors swapped.
static size_t EditDistance(std::string_view a, std::string_view b) {
  std::vector<size_t> before, above(b.size() + 1), row(b.size() + 1);
  std::iota(row.begin(), row.end(), size_t{0});
  for (size_t i = 1; i <= a.size(); ++i) {
    before = std::exchange(above, row);
    row[0] = i;
    for (size_t j = 1; j <= b.size(); ++j) {
      row[j] = std::min({above[j] + 1, row[j - 1] + 1, above[j - 1] + (a[i - 1] != b[j - 1])});
      if (i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1])
        row[j] = std::min(row[j], before[j - 2] + 1);
    }
  }
  return row[b.size()];
}

std::string Counted(int64_t count, const std::string& one) {
  std::string text = std::to_string(count) + " " + one;
  if (count == 1) return text;
  if (text.ends_with("ch")) return text + "es";
  if (text.ends_with("ry")) return text.replace(text.size() - 1, 1, "ies");
  return text + "s";
}

static std::string Lower(std::string_view text) {
  std::string lower(text);
  for (char& c : lower) c = static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
  return lower;
}

std::string Suggest(std::string_view word, const std::vector<std::string>& candidates) {
  size_t best = (word.size() < 4 ? 1 : std::max<size_t>(2, word.size() / 3)) + 1;
  const std::string* found = nullptr;
  for (const std::string& candidate : candidates) {
    size_t distance = EditDistance(Lower(word), Lower(candidate));
    if (distance < best) best = distance, found = &candidate;
  }
  return found ? " (did you mean \"" + *found + "\"?)" : "";
}

uint64_t Hash(std::string_view bytes, uint64_t seed) {
  uint64_t h = seed;
  for (unsigned char c : bytes) h = (h ^ c) * 0x100000001b3ull;
  return h;
}

std::string HexHash(std::string_view bytes) {
  char out[17];
  std::snprintf(out, sizeof out, "%016llx", static_cast<unsigned long long>(Hash(bytes)));
  return out;
}

}  // namespace pipewright
