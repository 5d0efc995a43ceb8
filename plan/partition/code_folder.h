// A folder that holds written code, and may be written again.
#pragma once
#include <map>
#include <string>
#include <vector>

namespace pipewright {

// Writes `files` (name -> text), and codegen.json with the hash of each. What the last time wrote
// and this time does not is removed. Throws Error before anything is written where a file has one
// of the names and is not as it was written last (`force`: it is replaced), or is one of those that
// were `read`. Returns what is to be said.
std::vector<std::string> WriteCode(const std::string& folder,
                                   const std::map<std::string, std::string>& files,
                                   const std::vector<std::string>& read, bool force);

}  // namespace pipewright
