// Makes one page about a package and its runs, for a browser.
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

// The page is complete by itself and loads nothing. It names what is missing, such as a profile, a
// job or a trace of this package, and how to get it. Throws Error for files that cannot be read.
std::string ReportPage(const PageInput& input);

// Returns whether a file is a page that ReportPage made.
bool IsReportPage(const std::string& text);

}  // namespace pipewright
