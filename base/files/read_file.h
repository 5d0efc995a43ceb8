// Reads and writes whole files.
#pragma once
#include <string>
#include <string_view>

#include "base/json.h"

namespace pipewright {

// Returns the whole file. Throws Error naming the path if it cannot be read.
std::string ReadFile(const std::string& path);

// Returns the JSON in the file, which may have comments. Throws Error("path:line:column: ...").
Json ReadJson(const std::string& path);

// Writes to a temporary file beside `path`, syncs and renames: `path` is never seen half written.
void WriteFile(const std::string& path, std::string_view content);

}  // namespace pipewright
