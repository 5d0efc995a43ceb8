// Results of tune that runs use: folders named by what they depend on.
#pragma once
#include <string>

#include "base/json.h"
#include "formats/job.h"
#include "formats/manifest.h"
#include "tune/job/request.h"

namespace pipewright {

struct TunedFor {
  std::string package;
  int ranks = 1;       // that may be used
  TuneStart start;     // of the ranks
  std::string memory;  // the limit of a rank; empty: none
  bool in_process = false;  // ranks are threads
};

// Returns what a result depends on: hashes of the package's code and of the job (without what only
// says how long to run and where to write) with its plan and costs, the machine, and all of the
// above.
Json TunedKey(const TunedFor& run, const Job& job, const Manifest& manifest);

// Returns the folder of the result with this key.
std::string TunedFolder(const std::string& root, const Json& key);

// Returns true if the folder has a complete result with this key.
bool IsTuned(const std::string& folder, const Json& key);

// Returns the budget in seconds that cut the result off; 0 if none did.
double CutOffAfter(const std::string& folder);

// Completes a result, whose other files are there.
void WriteTunedKey(const std::string& folder, const Json& key, double cut_off_after);

// Returns in which parts the key of the result in `folder` differs: "ranks 2, not 4"; "" if it does
// not, or if the folder has no key.
std::string OtherKey(const std::string& folder, const Json& key);

// Returns which part of the key differs in the most similar result under `root`: "FOLDER is
// for ranks 2, not 4"; "" if there is no result.
std::string OtherTuned(const std::string& root, const Json& key);

// Makes a job from the current text of the job at `path`, which may say otherwise how long to run
// or where to write, with the choices of the result. Writes it beside the result, named by its
// contents, so that runs at the same time do not change each other's, and returns its path.
std::string RenewTunedJob(const std::string& folder, const std::string& path);

// Records in a folder of checkpoints which result they are made with.
void RecordTuned(const std::string& checkpoints, const std::string& folder);
// Returns the result that checkpoints in a folder are made with; "" if none is recorded. Throws
// Error if the result is gone or has changed.
std::string RecordedTuned(const std::string& checkpoints);

}  // namespace pipewright
