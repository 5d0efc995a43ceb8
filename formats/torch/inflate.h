// Data compressed with "deflate", as zip archives hold it.
#pragma once
#include <cstdint>
#include <string>
#include <string_view>

namespace pipewright {

// The `size` bytes that `packed` stands for. Throws Error naming `where` when it is damaged or
// stands for another number of bytes; takes no more memory than `size`.
std::string Inflate(std::string_view packed, uint64_t size, const std::string& where);

}  // namespace pipewright
