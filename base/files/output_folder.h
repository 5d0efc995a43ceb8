// Writes the output folders of `pipewright partition -o`, `codegen -o` and `tune -o`, also
// over earlier output.
#pragma once
#include <map>
#include <string>
#include <vector>

#include "base/json.h"

namespace pipewright {

using OutputTexts = std::map<std::string, std::string>;  // by file name

// Each command records the hashes of the files that it wrote in its own file.
inline constexpr char kPartitionRecord[] = "partition.json", kCodegenRecord[] = "codegen.json";

// Throws Error if the folder is not writable or, if it does not exist, cannot be created.
void CheckFolder(const std::string& folder);

// Throws Error unless `record` and `files` may be written into `folder`; to be called before long
// work. None may be a file in `read`, and those that exist must be plain files or links. Without
// `force` an existing file must also be empty, have the same text (pass "" if that is not known
// yet), or be unchanged since one of these commands wrote it.
void CheckOutputFolder(const std::string& folder, const std::string& record,
                       const OutputTexts& files, const std::vector<std::string>& read, bool force);

// Writes `files`, and `report` with their hashes as `record`. Removes files that only the previous
// record lists, unless they were edited or are in `read`. Returns a note for each one that stays.
std::vector<std::string> WriteOutputFolder(const std::string& folder, const std::string& record,
                                           const OutputTexts& files, Json report,
                                           const std::vector<std::string>& read);

// Writes a report that was read from a record again, with changes, and files that have changed.
void WriteRecord(const std::string& folder, const std::string& record, Json report,
                 const OutputTexts& changed = {});

}  // namespace pipewright
