// Finds every mistake of a job file, where ReadJob stops at the first.
#pragma once
#include <string>
#include <vector>

namespace pipewright {

struct JobMistake {
  std::string text;    // what ReadJob would throw if it were the only one
  int line = 0, column = 0;  // of the value at fault, or of the object that lacks a key; from 1
};

// Returns nothing if ReadJob reads the file. A value that was found wrong is left out, or is
// replaced by one that holds, before the rest is read: mistakes that depend on each other may be
// missed.
std::vector<JobMistake> JobMistakes(const std::string& path);

}  // namespace pipewright
