// Measurements that later tunes use again: files in PACKAGE/tuned/measured, or in the output folder
// if the package cannot be written.
#pragma once
#include <optional>
#include <string>
#include <vector>

#include "base/json.h"
#include "formats/job.h"
#include "formats/manifest.h"
#include "tune/request.h"

namespace pipewright {

// Returns what identifies this machine: the processor's name, the number of cores for this process,
// and the memory.
std::string MachineName();

// Returns the number of cores that this process may use.
int CoresHere();

// Returns the bytes of this host's memory.
int64_t MemoryHere();

// Returns the core seconds that all programs of the machine have used so far; 0 if unknown.
double BusySeconds();

struct KeptMeasurements {
  std::vector<std::string> folders;  // the first that can be written is used; all are read
  std::string machine;               // MachineName, and how its ranks are started
  std::string code;  // a hash of the version of this program and of the code of the package
};

KeptMeasurements KeptFor(const TuneRequest& request, const Manifest& manifest);

// Returns why the job's data cannot be read here; "" if they can.
std::string WhyNoData(const Job& job);

// Returns a beginning of names that only runs have whose modules take as long: inputs of the same
// types and sizes, and for training the same parameters to train, body and matmul.
std::string KeptPrefix(const TuneRequest& request, const Job& job);

// Returns what was measured under `name` on this machine, for this code, with at least `repeat`
// repetitions; none if nothing was.
std::optional<Json> ReadKept(const KeptMeasurements& kept, const std::string& name, int repeat);

// Keeps a measurement for ReadKept. Returns false if no folder can be written.
bool WriteKept(const KeptMeasurements& kept, const std::string& name, int repeat,
               const Json& measured);

}  // namespace pipewright
