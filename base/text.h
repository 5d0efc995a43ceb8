// Small helpers for text.
#pragma once
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace pipewright {

std::string Join(const std::vector<std::string>& parts, std::string_view separator);
std::vector<std::string> Split(std::string_view text, char separator);

// Returns text such as "1 rank", "2 ranks", "3 microbatches" or "4 entries".
std::string Counted(int64_t count, const std::string& one);

// Returns " (did you mean \"x\"?)" for the candidate nearest to `word`, or "" if none is within two
// edits (one for words below 4 letters) or a third of its length. Ignores case.
std::string Suggest(std::string_view word, const std::vector<std::string>& candidates);

// Returns the 64-bit FNV-1a hash, which tells whether two texts are the same but is not secure.
uint64_t Hash(std::string_view bytes, uint64_t seed = 0xcbf29ce484222325ull);
std::string HexHash(std::string_view bytes);

}  // namespace pipewright
