#include "base/table.h"

#include <algorithm>

namespace pipewright {

std::string FormatTable(const std::vector<std::vector<std::string>>& rows) {
  auto length = [](const std::string& cell) {
    return static_cast<size_t>(
        std::count_if(cell.begin(), cell.end(), [](char c) { return (c & 0xC0) != 0x80; }));
  };
  std::vector<size_t> width;
  for (const auto& row : rows) {
    width.resize(std::max(width.size(), row.size()), 0);
    for (size_t c = 0; c < row.size(); ++c) width[c] = std::max(width[c], length(row[c]));
  }
  std::string out;
  for (const auto& row : rows) {
    for (size_t c = 0; c < row.size(); ++c) {
      out += row[c];
      if (c + 1 < row.size()) out += std::string(width[c] - length(row[c]) + 2, ' ');
    }
    out += '\n';
  }
  return out;
}

}  // namespace pipewright
