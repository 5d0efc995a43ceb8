// Small helpers on text and files that every part needs.
#pragma once
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace pipewright {

std::string Join(const std::vector<std::string>& parts, std::string_view separator);
std::vector<std::string> Split(std::string_view text, char separator);

// "1 rank", "2 ranks", "3 microbatches", "4 entries".
std::string Counted(int64_t count, const std::string& one);

// " (did you mean \"x\"?)" for the candidate nearest to `word` by edit distance, or "" when none is
// within two edits (short words: one) or a third of its length.
std::string Suggest(std::string_view word, const std::vector<std::string>& candidates);

// The whole file. Throws Error naming the path when it cannot be read.
std::string ReadFile(const std::string& path);

// Writes to a temporary file beside `path`, syncs and renames: `path` is never seen half written.
void WriteFile(const std::string& path, std::string_view content);

// 64-bit FNV-1a. For telling whether two texts are the same, not for security.
uint64_t Hash(std::string_view bytes, uint64_t seed = 0xcbf29ce484222325ull);
std::string HexHash(std::string_view bytes);

}  // namespace pipewright
