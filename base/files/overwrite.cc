#include "base/files/overwrite.h"

#include <filesystem>

#include "base/error.h"
#include "base/files/output_path.h"
#include "base/files/read_file.h"

namespace pipewright {

namespace fs = std::filesystem;

void CheckOverwrite(const std::string& path, const std::string& what, const std::string& cure,
                    const std::function<bool(const std::string& text)>& ours) {
  std::error_code none;
  if (IsStream(path) || !fs::exists(path, none)) return;
  if (fs::is_regular_file(path, none)) {
    const std::string text = ReadFile(path);
    if (text.empty() || ours(text)) return;
  }
  throw Error(path, what, cure);
}

}  // namespace pipewright
