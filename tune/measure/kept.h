// Measurements that later tunes use again: files in PACKAGE/tuned/measured, or in the output folder
// if the package cannot be written.
#pragma once
#include <optional>
#include <string>
#include <vector>

#include "base/json.h"
#include "formats/job.h"
#include "formats/manifest.h"
#include "tune/job/request.h"

namespace pipewright {

// Returns what tells that files have changed, without reading them: their sizes and times.
std::string StampsOf(const std::vector<std::string>& files);

// Returns the stamps of a job's data.
std::string StampsOfData(const Job& job);

// Returns the stamps of a package's weights.
std::string StampsOfWeights(const std::string& package, const Manifest& manifest);

// Returns what identifies this machine: the processor's name, and the cores and the memory that
// this process may use.
std::string MachineName();

struct KeptMeasurements {
  std::vector<std::string> folders;  // the first that can be written is used; all are read
  std::string machine;               // MachineName, and how its ranks are started
  std::string code;  // a hash of the version of this program and of the code of the package

  // Returns what to delete to measure again: the folders that are there.
  std::string ToDelete() const;
};

KeptMeasurements KeptFor(const TuneRequest& request, const Manifest& manifest);

// Returns why the job's data cannot be read here; "" if they can.
std::string WhyNoData(const Job& job);

// Returns a prefix of file names. Runs share it only if their modules take the same time: inputs of
// the same types and sizes, and for training the same parameters to train, body and matmul.
std::string KeptPrefix(const TuneRequest& request, const Job& job);

// Returns what was measured under `name` on this machine, for this code, with at least `repeat`
// repetitions; none if nothing was.
std::optional<Json> ReadKept(const KeptMeasurements& kept, const std::string& name, int repeat);

// Keeps a measurement for ReadKept. Returns false if no folder can be written.
bool WriteKept(const KeptMeasurements& kept, const std::string& name, int repeat,
               const Json& measured);

}  // namespace pipewright
