// Collects the files that a run reads, because no output may replace them, and finds edited ones.
#pragma once
#include <map>
#include <string>
#include <vector>

#include "formats/job.h"
#include "formats/manifest.h"

namespace pipewright {

std::vector<std::string> PackageFiles(const std::string& package, const Manifest& manifest);

// Returns true if the module's code differs from what `compile` wrote.
bool IsEdited(const std::string& package, const ModuleInfo& module);

// Includes the job, its data, and the files that options name; for weights in a folder or behind an
// index, all files that would be loaded. Throws Error if those cannot be read.
std::vector<std::string> RunFiles(const std::string& package, const Manifest& manifest,
                                  const Job& job, const std::vector<std::string>& given);

// The files that a run writes.
class OutputFiles {
 public:
  explicit OutputFiles(std::vector<std::string> read) : read_(std::move(read)) {}

  // Adds `file` ("": does nothing), which `key` of the job or command line names. Throws Error
  // naming `key` if the file is also another output or, if this process writes it (`here`), if
  // CheckWritable throws.
  void Add(const std::string& key, const std::string& file, bool here, bool in_place = false);

 private:
  std::vector<std::string> read_;
  std::map<std::string, std::string> keys_;  // by resolved path
};

}  // namespace pipewright
