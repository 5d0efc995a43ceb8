#include "base/files/missing_file.h"

#include <algorithm>
#include <cctype>
#include <cerrno>
#include <cstring>
#include <filesystem>
#include <vector>

#include "base/text.h"

namespace pipewright {

namespace fs = std::filesystem;

static std::string WithoutDigits(std::string text) {
  std::erase_if(text, [](unsigned char c) { return std::isdigit(c) != 0; });
  return text;
}

// Returns the outermost missing part of the path with a suggestion, or "" if nothing more can be
// said.
static std::string Missing(const std::string& path) {
  constexpr size_t kMost = 1000;  // limit on names to compare
  std::error_code ignored;
  fs::path whole = path;
  while (!whole.has_filename() && whole.has_relative_path()) whole = whole.parent_path();
  if (fs::exists(whole, ignored)) return "";
  fs::path missing = whole, folder;
  while (folder = missing.parent_path(), !folder.empty() && !fs::exists(folder, ignored))
    missing = folder;
  const std::string name = missing.filename().string();
  std::vector<std::string> there;
  size_t looked = 0;
  for (fs::directory_iterator at(folder.empty() ? "." : folder, ignored), end;
       at != end && looked++ < kMost; at.increment(ignored)) {
    const std::string other = at->path().filename().string();
    // A name that differs in digits is another file; one with another extension may be the intended
    // one.
    if (WithoutDigits(other) != WithoutDigits(name) || at->path().stem() == missing.stem())
      there.push_back(other);
  }
  std::sort(there.begin(), there.end());  // the order of directory entries depends on the host
  const std::string like = Suggest(name, there);
  return missing == whole && like.empty() ? "" : "there is no " + missing.string() + like;
}

Error Unreadable(const std::string& path) {
  const int reason = errno;
  return {path, std::string("cannot be read: ") + std::strerror(reason),
          reason == ENOENT ? Missing(path) : ""};
}

std::string PackageFile(const std::string& package, const std::string& file) {
  std::string path = package + "/" + file;
  std::error_code error;
  if (!fs::exists(path, error) && !error)
    throw Error(path, "is missing from the package",
                "copy the whole folder again, or compile the model again");
  return path;
}

}  // namespace pipewright
