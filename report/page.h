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

// Returns a page that is complete by itself and loads nothing. The page names what is missing, such
// as a profile, a job or a trace of this package, and how to get it. Throws Error for files that
// cannot be read.
std::string ReportPage(const PageInput& input);

// Throws Error if no page can be written to `path`: its folder is missing, it is among the files
// that are `read`, or another file lies there and `replace` is false.
void CheckPageOutput(const std::string& path, const std::vector<std::string>& read, bool replace);

// Writes the page. Returns "report.html: 45 KiB, opens in any browser\n", or "" if `path` is a
// stream.
std::string WritePage(const std::string& path, const PageInput& input);

}  // namespace pipewright
