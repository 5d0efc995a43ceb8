// What the user asks of `pipewright tune`.
#pragma once
#include <cstdint>
#include <limits>
#include <string>

namespace pipewright {

// Says how processes become ranks, as for `pipewright-run`.
struct TuneStart {
  std::string hosts;   // NAME:RANKS,...; empty: this one
  std::string mpirun;  // the command with options of its own; empty: "mpirun"

  // Returns true if ranks may be elsewhere, so that even a single one is started by mpirun.
  bool given() const { return !hosts.empty() || !mpirun.empty(); }
};

struct TuneRequest {
  std::string package, job, output;
  std::string model;    // the file that `package` is compiled from for this tune; empty: none
  std::string scratch;  // a folder for temporary files
  std::string input;    // of inference, a safetensors file, instead of a job; empty: training
  std::string options = "--";  // begins the names of the options for `memory` and `budget`
  std::string ranks_option = "--ranks";
  std::string memory;    // of the tensors of a rank, as the user wrote it; empty: no limit
  std::string machines;  // a file that describes other machines; empty: those at hand
  // Where the caller writes a package with the stages that are found as its modules; empty: the
  // package stays as it is.
  std::string cut_package;
  TuneStart start;
  int64_t most_samples = 0;  // of a microbatch; 0: no limit. Tune sets it
  int ranks = 0, candidates = 5, rounds = 3, repeat = 5;
  double budget = std::numeric_limits<double>::infinity();  // seconds
  bool exact = false, change_microbatch = false;
  bool no_measure = false, in_process = false;
  bool processes = false;  // ranks are processes only
  bool force = false;
  bool quiet = false;  // no progress on standard error

  bool infers() const { return !input.empty(); }
};

}  // namespace pipewright
