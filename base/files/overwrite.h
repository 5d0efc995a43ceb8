// The rule for output files that already exist: a command replaces what it wrote itself and nobody
// edited since, and anything else only with --force.
#pragma once
#include <functional>
#include <string>

namespace pipewright {

// Throws Error if `path`, with links followed, exists and may hold someone's work: it is not a
// file, or it is not empty, and `ours` does not recognize its text as this command's. `what` says
// so
// ("already exists, and is not ..."), and `cure` names what the command offers. Streams
// (output_path.h) pass. Callers omit this check under --force.
void CheckOverwrite(const std::string& path, const std::string& what, const std::string& cure,
                    const std::function<bool(const std::string& text)>& ours);

}  // namespace pipewright
