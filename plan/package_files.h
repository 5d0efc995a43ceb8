// What runs read: no output may take its place.
#pragma once
#include <map>
#include <string>
#include <vector>

#include "plan/job.h"
#include "plan/manifest.h"

namespace pipewright {

std::vector<std::string> PackageFiles(const std::string& package, const Manifest& manifest);
// With the job and its data, and the files that options name; of weights in a folder or behind an
// index, all that would be loaded. Throws Error where those cannot be read.
std::vector<std::string> RunFiles(const std::string& package, const Manifest& manifest,
                                  const Job& job, const std::vector<std::string>& given);

// The files that a run writes.
class OutputFiles {
 public:
  explicit OutputFiles(std::vector<std::string> read) : read_(std::move(read)) {}

  // Throws Error naming `key`, which names `file` ("": none), where that is another output; and
  // where it is written `here`, as CheckWritable does.
  void Add(const std::string& key, const std::string& file, bool here, bool in_place = false);

 private:
  std::vector<std::string> read_;
  std::map<std::string, std::string> keys_;  // by the path that links lead to
};

}  // namespace pipewright
