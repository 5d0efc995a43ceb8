// What a run with weights on disk keeps in memory and has read.
#pragma once
#include <string>

#include "runtime/session.h"

namespace pipewright {

// `folder` is where other programs keep a second copy of offloaded weights. None is needed here:
// what lies in it is not used, and said so. Throws Error where it is a file, or where `report`
// could not be written.
void CheckOffload(const std::string& folder, const std::string& report, Transport& transport);

// A line a rank for people, empty where no rank has weights on disk; and all figures as JSON into
// `file` (""; nowhere). Collective; only rank 0 gets the text and writes.
std::string ReportOffload(const Session& session, Transport& transport, int64_t sweeps,
                          const std::string& file);

}  // namespace pipewright
