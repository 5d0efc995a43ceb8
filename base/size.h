// Sizes as people write them.
#pragma once
#include <cstdint>
#include <string>
#include <string_view>

namespace pipewright {

// "10GB", "1.5GiB", "512 KiB", "1e3MB": KB, MB, GB, TB are powers of 1000, KiB, ... of 1024, in any
// case but for the last letter: a lower-case b would mean bits and is refused (but for "gib" and
// its like throughout in lower case). A bare number is bytes. Fractions of a byte are cut off.
// Throws Error("...: ...") with `where` in front: anything else, negative sizes, more than 2^63-1
// bytes.
int64_t ParseSize(std::string_view text, const std::string& where);

// "236 B", "1.5 KiB", "10 GiB".
std::string SizeText(int64_t bytes);

}  // namespace pipewright
