#include "plan/partition/output_folder.h"

#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <filesystem>

#include "plan/atomic_file.h"
#include "plan/error.h"
#include "plan/text.h"

namespace pipewright {

namespace fs = std::filesystem;

static constexpr char kReport[] = "partition.json", kHashes[] = "written";

// By name; empty: no partition was written there.
static std::map<std::string, std::string> WrittenBefore(const std::string& folder) {
  std::map<std::string, std::string> hashes;
  try {
    const Json report = ReadJson(folder + "/" + kReport);
    if (!report.is_object() || !report.contains(kHashes) || !report[kHashes].is_object()) return {};
    for (const auto& [name, hash] : report[kHashes].items())
      if (hash.is_string()) hashes[name] = hash.get<std::string>();
  } catch (const Error&) {
  }
  return hashes;
}

// That it is a folder or can become one.
static void CheckFolder(const std::string& folder) {
  if (folder.empty()) throw Error("output", "its name is empty", "name a folder");
  std::error_code none;
  fs::path there = fs::absolute(folder, none);
  while (!fs::exists(fs::symlink_status(there, none)) && there.has_relative_path())
    there = there.parent_path();
  if (!fs::is_directory(there, none))
    throw Error(folder,
                fs::exists(folder, none) ? "is a file, and the output is a folder of files"
                                         : "cannot be written: " + there.string() + " is no folder",
                "name a folder, which need not be there yet");
  if (access(there.c_str(), W_OK | X_OK) != 0)
    throw Error(folder, "cannot be written: folder " + there.string() + ": " +
                            std::strerror(errno));
}

void CheckOutputFolder(const std::string& folder, const std::vector<std::string>& names,
                       const std::vector<std::string>& read, bool force) {
  CheckFolder(folder);
  const std::map<std::string, std::string> before = WrittenBefore(folder);
  std::vector<std::string> all = names;
  all.push_back(kReport);
  std::error_code none;
  for (const std::string& name : all) {
    const std::string path = folder + "/" + name;
    for (const std::string& file : read)
      if (!file.empty() && fs::equivalent(path, file, none))
        throw Error(path, "is read in this run: it would be overwritten", "name another folder");
    if (!fs::exists(fs::symlink_status(path, none))) continue;
    CheckWritable(path);
    if (force || (name == kReport && !before.empty())) continue;
    auto found = before.find(name);
    if (found != before.end() && HexHash(ReadFile(path)) == found->second) continue;
    throw Error(path,
                found == before.end() ? "is there already, and no earlier partition wrote it"
                                      : "was edited since an earlier partition wrote it",
                "name another folder, or write over it with --force");
  }
}

void WriteOutputFolder(const std::string& folder, const std::map<std::string, std::string>& files,
                       Json report) {
  CreateFolders(folder);
  for (const auto& [name, text] : files) {
    WriteFile(folder + "/" + name, text);
    report[kHashes][name] = HexHash(text);
  }
  WriteFile(folder + "/" + kReport, report.dump(2) + "\n");
}

}  // namespace pipewright
