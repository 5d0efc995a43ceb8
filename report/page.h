// One page about a package and its runs, for a browser.
#pragma once
#include <optional>
#include <string>
#include <vector>

#include "formats/job.h"
#include "report/view.h"

namespace pipewright {

struct PageInput {
  PackageView view;
  std::optional<Job> job;            // a run to predict
  std::string trace;                 // "", or one that `bench --trace` measured
  std::vector<std::string> metrics;  // files of `train --metrics`
  double memory = 0;                 // limit of each rank in bytes; 0: the job's
};

// Everything is in the page: nothing is loaded. What is not there is named with how to get it: no
// profile, no job, a trace of another package. Throws Error for files that cannot be read.
std::string ReportPage(const PageInput& input);

// Returns whether a file is a page that ReportPage made.
bool IsReportPage(const std::string& text);

}  // namespace pipewright
