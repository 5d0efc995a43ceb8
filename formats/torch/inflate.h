// Decompresses "deflate" data, as zip archives have it.
#pragma once
#include <cstdint>
#include <string>
#include <string_view>

namespace pipewright {

// Decompresses `packed` to `size` bytes. Throws Error naming `where` if it is damaged or has
// another size. Allocates no more than about `size` bytes.
std::string Inflate(std::string_view packed, uint64_t size, const std::string& where);

}  // namespace pipewright
