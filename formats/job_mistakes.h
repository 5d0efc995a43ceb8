// Finds every mistake of a job file, where ReadJob stops at the first.
#pragma once
#include <string>
#include <vector>

namespace pipewright {

struct JobMistake {
  std::string text;          // the error of ReadJob if this were the only mistake
  // The place, from 1, of the value at fault, or of the object that lacks a key.
  int line = 0, column = 0;
};

// Returns nothing if ReadJob(path, changes) succeeds. A wrong value is left out or replaced by a
// valid one before the rest is read, so mistakes that depend on each other may be missed. Changed
// values have no place.
std::vector<JobMistake> JobMistakes(const std::string& path,
                                    const std::vector<std::string>& changes = {});

}  // namespace pipewright
