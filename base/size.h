// Parses and formats sizes such as "1.5 GiB".
#pragma once
#include <cstdint>
#include <string>
#include <string_view>

namespace pipewright {

// Returns the bytes of a size such as "10GB", "1.5GiB", "512 KiB", "1e3MB" or, without a unit,
// "64". KB, MB, GB, TB are powers of 1000; KiB, MiB, GiB, TiB and K, M, G, T are powers of 1024.
// Case matters only in the last letter: a lower-case b means bits and is refused, except in
// all-lower-case "gib" and the like. Fractions of a byte are cut off. Throws Error naming `where`
// for anything else, for negative sizes and for more than 2^63-1 bytes.
int64_t ParseSize(std::string_view text, const std::string& where);

// Returns text such as "236 B", "1.5 KiB" or "10 GiB".
std::string SizeText(int64_t bytes);

}  // namespace pipewright
