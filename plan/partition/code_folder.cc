#include "plan/partition/code_folder.h"

#include <filesystem>

#include "plan/atomic_file.h"
#include "plan/error.h"
#include "plan/json.h"
#include "plan/text.h"

namespace pipewright {

namespace fs = std::filesystem;

static const char kRecord[] = "codegen.json";

static bool IsThere(const std::string& path) {
  std::error_code ignored;
  return fs::exists(fs::symlink_status(path, ignored));
}

// Name -> hash of what was written last; nothing where that is not known.
static std::map<std::string, std::string> Written(const std::string& path) {
  std::map<std::string, std::string> hashes;
  try {
    const Json record = ParseJson(ReadFile(path), path);
    for (const auto& [name, hash] : record.at("files").items())
      // Nothing outside of the folder.
      if (fs::path(name).filename() == name) hashes[name] = hash.get<std::string>();
  } catch (const std::exception&) {
    hashes.clear();
  }
  return hashes;
}

std::vector<std::string> WriteCode(const std::string& folder,
                                   const std::map<std::string, std::string>& files,
                                   const std::vector<std::string>& read, bool force) {
  if (folder.empty()) throw Error("-o", "its name is empty", "name a folder");
  const std::string record = folder + "/" + kRecord;
  const std::map<std::string, std::string> last = Written(record);
  auto edited = [&](const std::string& name) {
    auto hash = last.find(name);
    return hash == last.end() || HexHash(ReadFile(folder + "/" + name)) != hash->second;
  };
  auto check = [&](const std::string& name, const std::string& text) {
    const std::string path = folder + "/" + name;
    if (!IsThere(path)) return;
    CheckWritable(path, read);
    if (force || ReadFile(path) == text || !edited(name)) return;
    throw Error(path,
                last.count(name) ? "somebody edited it since it was written"
                                 : "is there already, and codegen did not write it",
                "choose another folder, or replace it with --force");
  };
  for (const auto& [name, text] : files) check(name, text);
  if (IsThere(record)) {
    CheckWritable(record, read);
    if (last.empty() && !force)
      throw Error(record, "is there already, and codegen did not write it",
                  "choose another folder, or replace it with --force");
  }
  CreateFolders(folder);
  std::vector<std::string> notes;
  Json hashes = Json::object();
  for (const auto& [name, text] : files) {
    WriteFile(folder + "/" + name, text);
    hashes[name] = HexHash(text);
  }
  for (const auto& [name, unused] : last) {
    const std::string path = folder + "/" + name;
    if (files.count(name) || !IsThere(path)) continue;
    std::error_code kept;
    if (edited(name) || !fs::remove(path, kept))
      notes.push_back(path + " was written before and is no part of this: somebody edited it, so "
                             "it stays");
  }
  WriteFile(record, Json{{"files", hashes}}.dump(2) + "\n");
  return notes;
}

}  // namespace pipewright
