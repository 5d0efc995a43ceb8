// Formats tables for people to read.
#pragma once
#include <string>
#include <vector>

namespace pipewright {

// Makes columns as wide as their widest cell (in UTF-8 characters), two spaces apart. The last one
// is not padded.
std::string FormatTable(const std::vector<std::vector<std::string>>& rows);

}  // namespace pipewright
