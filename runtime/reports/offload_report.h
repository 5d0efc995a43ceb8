// Reports the memory use and the reads of a run with weights on disk.
#pragma once
#include <string>

#include "runtime/session.h"

namespace pipewright {

// Other programs keep a second copy of offloaded weights in `folder`. This one needs none: it
// ignores the contents and says so. Throws Error if `folder` is a file, or if `report` cannot be
// written.
void CheckOffload(const std::string& folder, const std::string& report, Transport& transport);

// Returns one line per rank for the user, "" if no rank has weights on disk, and writes all figures
// as JSON to `file` ("": nowhere). Collective; only rank 0 gets the text and writes.
std::string ReportOffload(const Session& session, int64_t sweeps, const std::string& file);

}  // namespace pipewright
