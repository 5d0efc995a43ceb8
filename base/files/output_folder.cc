#include "base/files/output_folder.h"

#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <filesystem>
#include <set>

#include "base/error.h"
#include "base/files/atomic_file.h"
#include "base/files/overwrite.h"
#include "base/files/read_file.h"
#include "base/text.h"

namespace pipewright {

namespace fs = std::filesystem;

// `kBefore` has the hashes of the files being replaced, until all new ones are written.
static constexpr char kWritten[] = "written", kBefore[] = "before", kHash[] = "hash";

namespace {

using Hashes = std::map<std::string, std::set<std::string>>;  // by file name

}  // namespace

static fs::file_type TypeOf(const std::string& path) {
  std::error_code none;
  return fs::symlink_status(path, none).type();
}

static bool IsThere(const std::string& path) {
  return TypeOf(path) != fs::file_type::not_found && TypeOf(path) != fs::file_type::none;
}

static bool IsPlainFile(const std::string& path) { return TypeOf(path) == fs::file_type::regular; }

// Reads a record. Returns an empty map if it is missing, unreadable or edited.
static Hashes ReadRecord(const std::string& path) {
  Hashes hashes;
  if (!IsPlainFile(path)) return hashes;
  try {
    Json report = ReadJson(path);
    if (!report.is_object() || !report.contains(kHash)) return {};
    const Json hash = report[kHash];
    report.erase(kHash);
    if (hash != HexHash(report.dump())) return {};
    for (const char* key : {kWritten, kBefore}) {
      if (!report.contains(key)) continue;
      for (const auto& [name, list] : report[key].items())
        for (const Json& one : list) hashes[name].insert(one.get<std::string>());
    }
  } catch (const std::exception&) {
    return {};
  }
  return hashes;
}

static Json ToJson(const Hashes& hashes) {
  Json json = Json::object();
  for (const auto& [name, list] : hashes) json[name] = list;
  return json;
}

void WriteRecord(const std::string& folder, const std::string& record, Json report,
                 const OutputTexts& changed) {
  for (const auto& [name, text] : changed) {
    WriteFile(folder + "/" + name, text);
    report[kWritten][name] = Json::array({HexHash(text)});
  }
  report.erase(kHash);
  report[kHash] = HexHash(report.dump());
  WriteFile(folder + "/" + record, report.dump(2) + "\n");
}

// Checks the nearest existing parent if the folder does not exist yet.
void CheckFolder(const std::string& folder) {
  if (folder.empty()) throw Error("-o", "its name is empty", "name a folder");
  std::error_code none;
  fs::path there = fs::absolute(folder, none);
  while (!IsThere(there.string()) && there.has_relative_path()) there = there.parent_path();
  if (!fs::is_directory(there, none))
    throw Error(folder,
                fs::exists(folder, none)
                    ? "is a file, but the output is a folder"
                    : "cannot be written: " + there.string() + " is not a folder",
                "name a folder; it is created if it does not exist");
  if (access(there.c_str(), W_OK | X_OK) != 0)
    throw Error(folder,
                "cannot be written: folder " + there.string() + ": " + std::strerror(errno));
}

void CheckOutputFolder(const std::string& folder, const std::string& record,
                       const OutputTexts& files, const std::vector<std::string>& read, bool force) {
  CheckFolder(folder);
  Hashes known;
  for (const std::string& name :
       {record, std::string(kPartitionRecord), std::string(kCodegenRecord)})
    for (const auto& [file, hashes] : ReadRecord(folder + "/" + name))
      known[file].insert(hashes.begin(), hashes.end());
  auto check = [&](const std::string& name, const std::string& text, bool ours) {
    const std::string path = folder + "/" + name;
    if (!IsThere(path)) return;
    if (!IsPlainFile(path) && TypeOf(path) != fs::file_type::symlink)
      throw Error(path, "already exists, and is not a plain file", "name another folder");
    CheckWritable(path, read);
    if (force || ours) return;
    const std::set<std::string>& hashes = known[name];
    const std::string what = hashes.empty() ? "already exists, and was not written here before"
                                            : "was edited since it was written";
    const char* cure = "name another folder, or replace it with --force";
    if (!IsPlainFile(path)) throw Error(path, what, cure);
    CheckOverwrite(path, what, cure, [&](const std::string& now) {
      return now == text || hashes.count(HexHash(now));
    });
  };
  for (const auto& [name, text] : files) check(name, text, false);
  check(record, "", !ReadRecord(folder + "/" + record).empty());
}

// Removes a file that is no longer part of the output. Returns a note if the file stays.
static std::string Remove(const std::string& path, const std::set<std::string>& hashes,
                          const std::vector<std::string>& read) {
  if (!IsThere(path)) return "";
  const std::string stays =
      path + " was written before, but is not part of this output. It is kept because it ";
  std::error_code failed;
  for (const std::string& file : read)
    if (!file.empty() && fs::equivalent(path, file, failed)) return stays + "is read here";
  if (!IsPlainFile(path) || !hashes.count(HexHash(ReadFile(path)))) return stays + "was edited";
  fs::remove(path, failed);
  return failed ? stays + "cannot be removed: " + failed.message() : "";
}

std::vector<std::string> WriteOutputFolder(const std::string& folder, const std::string& record,
                                           const OutputTexts& files, Json report,
                                           const std::vector<std::string>& read) {
  const std::string record_path = folder + "/" + record;
  const Hashes before = ReadRecord(record_path);
  Hashes hashes;
  for (const auto& [name, text] : files) hashes[name].insert(HexHash(text));
  CreateFolders(folder);
  report[kWritten] = ToJson(hashes);
  // This comes first, so that an interrupted write can be repeated.
  Json unfinished = report;
  unfinished[kBefore] = ToJson(before);
  WriteRecord(folder, record, unfinished);
  for (const auto& [name, text] : files) WriteFile(folder + "/" + name, text);
  std::vector<std::string> notes;
  for (const auto& [name, old] : before)
    if (!files.count(name))
      if (const std::string note = Remove(folder + "/" + name, old, read); !note.empty())
        notes.push_back(note);
  WriteRecord(folder, record, report);
  return notes;
}

}  // namespace pipewright
