// Classifies the paths of output files.
#pragma once
#include <string>

namespace pipewright {

// Returns true for paths that are written in place, not replaced: files that this process has open
// (/dev/stdout), pipes, devices. No other file is put beside them.
bool IsStream(const std::string& path);
bool IsStandardOutput(const std::string& path);

// Returns the descriptor that the path names (/dev/stdout, /dev/fd/N), even of a regular file;
// -1 for other paths.
int OpenDescriptor(const std::string& path);

// Waits until what was written to a file is on its disk. Does nothing for "" and for pipes and
// devices, or if it fails.
void SyncOutput(const std::string& path);

}  // namespace pipewright
