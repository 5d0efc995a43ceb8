// What the user asks of `pipewright tune`.
#pragma once
#include <limits>
#include <string>

namespace pipewright {

struct TuneRequest {
  std::string package, job, output;
  std::string memory;    // of the tensors of a rank, as the user wrote it; empty: no limit
  std::string machines;  // a file that describes other machines; empty: those at hand
  // Where the caller writes a package with the stages that are found as its modules; empty: the
  // package stays as it is.
  std::string cut_package;
  int ranks = 0, candidates = 5, rounds = 3, repeat = 5;
  double budget = std::numeric_limits<double>::infinity();  // seconds
  bool exact = false, change_microbatch = false, no_measure = false, in_process = false;
  bool processes = false;  // ranks are processes only
  bool force = false;
  bool quiet = false;  // no progress on standard error
};

}  // namespace pipewright
