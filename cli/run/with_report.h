// The page that `train` (by "report" in the job, or --report) and `bench` (by --report) write at
// the end of a run.
#pragma once
#include <cstdio>
#include <functional>

#include "formats/job.h"
#include "report/page.h"
#include "runtime/commands/run_options.h"
#include "runtime/exec/transport.h"

namespace pipewright {

// Runs `work`, then writes the page, on rank 0, and prints to `output` what it says. `add_files`
// adds the files that the run has written. Must be called on every rank; throws the same Error on
// all of them, before `work` if the page may not be written.
void WithReport(const RunOptions& run, Transport& transport, std::FILE* output,
                const std::function<void()>& work,
                const std::function<void(const Job&, PageInput&)>& add_files);

}  // namespace pipewright
