// The folders that `pipewright partition -o` and `codegen -o` write, and may write again.
#pragma once
#include <map>
#include <string>
#include <vector>

#include "base/json.h"

namespace pipewright {

using OutputTexts = std::map<std::string, std::string>;  // by name of the file

// The file in which each keeps the hashes of the files that it wrote.
inline constexpr char kPartitionRecord[] = "partition.json", kCodegenRecord[] = "codegen.json";

// Throws Error if the folder, or those of its path that are not there yet, cannot be made or
// written.
void CheckFolder(const std::string& folder);

// Throws Error, before long work, unless `record` and `files` may be written into `folder`: none is
// one of the files that are `read`, all that is there are plain files or links, and, without
// `force`, each is empty, has the same text already ("": not known yet), or is as one of the two
// commands wrote it.
void CheckOutputFolder(const std::string& folder, const std::string& record,
                       const OutputTexts& files, const std::vector<std::string>& read, bool force);

// The hashes are added to `report`, which becomes `record`. Files that the folder's record has, but
// `files` have not, are removed, unless they were edited or are `read`: notes of those that stay.
std::vector<std::string> WriteOutputFolder(const std::string& folder, const std::string& record,
                                           const OutputTexts& files, Json report,
                                           const std::vector<std::string>& read);

}  // namespace pipewright
