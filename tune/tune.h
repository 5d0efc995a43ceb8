// `pipewright tune`: finds the fastest way to run a package and a job, and writes it.
#pragma once
#include <vector>

#include "formats/written_buffer.h"
#include "tune/job/request.h"
#include "tune/result.h"

namespace pipewright {

// Measures, searches and writes the output folder: conf.json, job.json and report.json; for
// inference no job.json. `written`: the buffers that the package's forward writes. Throws Error if
// nothing fits or nothing runs.
TuneOutcome Tune(TuneRequest request, const std::vector<WrittenBuffer>& written);

// Returns the line that starts the winner.
std::string StartLine(const TuneRequest& request, const TuneOutcome& outcome);

}  // namespace pipewright
