// The folder that `pipewright partition -o` writes, and may write again.
#pragma once
#include <map>
#include <string>
#include <vector>

#include "plan/json.h"

namespace pipewright {

// Throws Error, before long work, unless partition.json and `names` may be written into `folder`:
// none is one of the files that are `read`, and, without `force`, what is there of them is as an
// earlier partition wrote it.
void CheckOutputFolder(const std::string& folder, const std::vector<std::string>& names,
                       const std::vector<std::string>& read, bool force);

// `files`: text by name. partition.json gets the report, and of each file the hash that tells
// whether somebody edited it.
void WriteOutputFolder(const std::string& folder, const std::map<std::string, std::string>& files,
                       Json report);

}  // namespace pipewright
