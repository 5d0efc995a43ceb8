#include "plan/partition/output_folder.h"

#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <filesystem>
#include <set>

#include "plan/atomic_file.h"
#include "plan/error.h"
#include "plan/text.h"

namespace pipewright {

namespace fs = std::filesystem;

static constexpr char kHashes[] = "written";

static bool IsThere(const std::string& path) {
  std::error_code none;
  return fs::exists(fs::symlink_status(path, none));
}

// Hashes by name; empty: there is no such record.
static std::map<std::string, std::string> Written(const std::string& record) {
  std::map<std::string, std::string> hashes;
  try {
    const Json report = ReadJson(record);
    if (!report.is_object() || !report.contains(kHashes) || !report[kHashes].is_object()) return {};
    for (const auto& [name, hash] : report[kHashes].items())
      // Nothing outside of the folder.
      if (hash.is_string() && fs::path(name).filename() == name)
        hashes[name] = hash.get<std::string>();
  } catch (const Error&) {
  }
  return hashes;
}

// That it is a folder or can become one.
static void CheckFolder(const std::string& folder) {
  if (folder.empty()) throw Error("-o", "its name is empty", "name a folder");
  std::error_code none;
  fs::path there = fs::absolute(folder, none);
  while (!IsThere(there.string()) && there.has_relative_path()) there = there.parent_path();
  if (!fs::is_directory(there, none))
    throw Error(folder,
                fs::exists(folder, none) ? "is a file, and the output is a folder of files"
                                         : "cannot be written: " + there.string() + " is no folder",
                "name a folder, which need not be there yet");
  if (access(there.c_str(), W_OK | X_OK) != 0)
    throw Error(folder, "cannot be written: folder " + there.string() + ": " +
                            std::strerror(errno));
}

void CheckOutputFolder(const std::string& folder, const std::string& record,
                       const OutputTexts& files, const std::vector<std::string>& read, bool force) {
  CheckFolder(folder);
  std::map<std::string, std::set<std::string>> known;
  for (const char* name : {kPartitionRecord, kCodegenRecord})
    for (const auto& [file, hash] : Written(folder + "/" + name)) known[file].insert(hash);
  auto check = [&](const std::string& name, const std::string& text, bool ours) {
    const std::string path = folder + "/" + name;
    if (!IsThere(path)) return;
    CheckWritable(path, read);
    if (force || ours) return;
    const std::string now = ReadFile(path);
    if (now.empty() || now == text || known[name].count(HexHash(now))) return;
    throw Error(path,
                known[name].empty() ? "is there already, and was not written here before"
                                    : "was edited since it was written",
                "name another folder, or write over it with --force");
  };
  for (const auto& [name, text] : files) check(name, text, false);
  check(record, "", !Written(folder + "/" + record).empty());
}

std::vector<std::string> WriteOutputFolder(const std::string& folder, const std::string& record,
                                           const OutputTexts& files, Json report) {
  const std::map<std::string, std::string> before = Written(folder + "/" + record);
  CreateFolders(folder);
  report[kHashes] = Json::object();
  for (const auto& [name, text] : files) {
    WriteFile(folder + "/" + name, text);
    report[kHashes][name] = HexHash(text);
  }
  std::vector<std::string> notes;
  for (const auto& [name, hash] : before) {
    const std::string path = folder + "/" + name;
    if (files.count(name) || !IsThere(path)) continue;
    std::error_code kept;
    if (HexHash(ReadFile(path)) != hash || !fs::remove(path, kept))
      notes.push_back(path + " was written before and is no part of this: it was edited and stays");
  }
  WriteFile(folder + "/" + record, report.dump(2) + "\n");
  return notes;
}

}  // namespace pipewright
