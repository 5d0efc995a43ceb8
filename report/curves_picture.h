// Draws the curves of training runs, or writes them as a table.
#pragma once
#include <map>
#include <string>
#include <utility>
#include <vector>

namespace pipewright {

// The metrics file of a run, as one curve of (step, value) per number: "loss", "validation.loss",
// "memory.0". Omits the losses of microbatches.
struct Metrics {
  std::string path;
  std::map<std::string, std::vector<std::pair<double, double>>> curves;
  bool unfinished = false;  // the last line is not complete: the run is still going on
};
// Reads a metrics file. Throws Error for a line that is not a JSON object with "step", except the
// last one.
Metrics ReadMetrics(const std::string& path);

// Draws a panel for each of the keys that people look at, with one color per file; validation is
// dashed.
std::string CurvesSvg(const std::vector<Metrics>& runs);

// Returns the numbers as comma-separated values: one row per step, one column per key, empty where
// a step has none. Reading a number back gives the same value.
std::string CurvesCsv(const Metrics& run);

}  // namespace pipewright
