// Tables for people.
#pragma once
#include <string>
#include <vector>

namespace pipewright {

// Columns as wide as their widest cell (in UTF-8 characters), two spaces apart; the last one ends
// where it ends.
std::string FormatTable(const std::vector<std::vector<std::string>>& rows);

}  // namespace pipewright
