#include "formats/package/edited_lines.h"

#include <algorithm>
#include <cstdio>
#include <set>

#include "base/files/missing_file.h"
#include "base/files/read_file.h"
#include "base/text.h"

namespace pipewright {

namespace {

constexpr size_t kDigits = 4;
// If there are more pairs of lines to compare, all lines from the first to the last edit count.
constexpr size_t kMostPairs = 4'000'000;

using Hashes = std::vector<std::string>;

std::string ShortHash(std::string_view line) {
  const uint64_t hash = Hash(line);
  char text[kDigits + 1];
  std::snprintf(text, sizeof text, "%04x",
                static_cast<unsigned>((hash ^ hash >> 16 ^ hash >> 32 ^ hash >> 48) & 0xffff));
  return text;
}

Hashes HashesOf(std::string_view code) {
  Hashes hashes;
  for (size_t begin = 0; begin < code.size();) {
    // Includes the newline, because removing that of the last line is an edit.
    const size_t end = std::min(code.find('\n', begin), code.size() - 1) + 1;
    hashes.push_back(ShortHash(code.substr(begin, end - begin)));
    begin = end;
  }
  return hashes;
}

// Returns the positions in `now` that do not belong to a longest common subsequence with `then`,
// and those at which something of `then` is missing.
std::set<size_t> Changes(const Hashes& then, const Hashes& now) {
  std::set<size_t> changes;
  if (then.size() * now.size() > kMostPairs) {
    for (size_t j = 0; j < now.size(); ++j) changes.insert(j);
    return changes;
  }
  const size_t columns = now.size() + 1;
  std::vector<int> common((then.size() + 1) * columns);  // length of the one from i and j on
  for (size_t i = then.size(); i-- > 0;)
    for (size_t j = now.size(); j-- > 0;)
      common[i * columns + j] =
          then[i] == now[j] ? common[(i + 1) * columns + j + 1] + 1
                            : std::max(common[(i + 1) * columns + j], common[i * columns + j + 1]);
  size_t i = 0, j = 0;
  auto ended = [&] { return i == then.size() && j == now.size(); };
  auto same = [&] { return i < then.size() && j < now.size() && then[i] == now[j]; };
  for (;;) {
    for (; same(); ++j) ++i;
    if (ended()) return changes;
    const size_t begin = j;
    while (!ended() && !same()) {
      const bool is_new = j < now.size() && (i == then.size() || common[i * columns + j + 1] >=
                                                                     common[(i + 1) * columns + j]);
      is_new ? ++j : ++i;
    }
    changes.insert(begin);  // even if lines are only missing
    for (size_t line = begin; line < j; ++line) changes.insert(line);
  }
}

}  // namespace

std::string LineHashes(std::string_view code) { return Join(HashesOf(code), ""); }

std::vector<int> EditedLines(std::string_view code, std::string_view hashes) {
  if (hashes.empty()) return {};
  Hashes then, now = HashesOf(code);
  for (size_t at = 0; at < hashes.size(); at += kDigits)
    then.emplace_back(hashes.substr(at, kDigits));
  // Skips the lines that match at the beginning and at the end, which are most of a file.
  const long first =
      std::mismatch(then.begin(), then.end(), now.begin(), now.end()).second - now.begin();
  long last = 0;
  const long most = static_cast<long>(std::min(then.size(), now.size())) - first;
  while (last < most && then.end()[-1 - last] == now.end()[-1 - last]) ++last;
  std::vector<int> lines;
  for (size_t change : Changes({then.begin() + first, then.end() - last},
                               {now.begin() + first, now.end() - last}))
    lines.push_back(
        static_cast<int>(std::min(static_cast<size_t>(first) + change, now.size() - 1) + 1));
  lines.erase(std::unique(lines.begin(), lines.end()), lines.end());
  return lines;
}

std::string EditedPlace(const std::string& package, const ModuleInfo& module) {
  const std::string code = ReadFile(PackageFile(package, module.code));
  if (HexHash(code) == module.code_hash) return "";
  const std::vector<int> lines = EditedLines(code, module.line_hashes);
  std::vector<std::string> ranges;
  for (size_t i = 0; i < lines.size(); ++i) {
    const int begin = lines[i];
    while (i + 1 < lines.size() && lines[i + 1] == lines[i] + 1) ++i;
    ranges.push_back(std::to_string(begin) +
                     (lines[i] > begin ? "-" + std::to_string(lines[i]) : ""));
  }
  if (ranges.empty()) return module.code;
  return module.code + (lines.size() > 1 ? " (lines " : " (line ") + Join(ranges, ", ") + ")";
}

std::string EditedPlaces(const std::string& package, const Manifest& manifest) {
  std::vector<std::string> places;
  for (const ModuleInfo& module : manifest.modules)
    if (std::string place = EditedPlace(package, module); !place.empty())
      places.push_back(std::move(place));
  return Join(places, ", ");
}

}  // namespace pipewright
