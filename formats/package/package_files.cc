#include "formats/package/package_files.h"

#include <filesystem>

#include "base/error.h"
#include "base/files/atomic_file.h"
#include "base/files/missing_file.h"
#include "base/files/read_file.h"
#include "base/text.h"
#include "formats/weights/checkpoint.h"

namespace pipewright {

namespace fs = std::filesystem;

constexpr char kIndexEnd[] = ".index.json";

std::vector<std::string> PackageFiles(const std::string& package, const Manifest& manifest) {
  std::vector<std::string> files = {package + "/manifest.json"};
  for (const ModuleInfo& module : manifest.modules) {
    files.push_back(package + "/" + module.code);
    files.push_back(package + "/" + module.weights);
  }
  return files;
}

bool IsEdited(const std::string& package, const ModuleInfo& module) {
  return HexHash(ReadFile(PackageFile(package, module.code))) != module.code_hash;
}

static void AddGiven(const std::string& path, std::vector<std::string>& files) {
  files.push_back(path);
  std::error_code none;
  const bool folder = fs::is_directory(path, none);
  if (!folder && !path.ends_with(kIndexEnd)) return;
  const Checkpoint weights = OpenCheckpoint(path);
  for (const auto& file : weights.files) files.push_back(file->path());
  for (fs::directory_iterator at(fs::path(files.back()).parent_path(), none), end;
       folder && !none && at != end; at.increment(none))
    if (at->path().string().ends_with(kIndexEnd)) files.push_back(at->path().string());
}

std::vector<std::string> RunFiles(const std::string& package, const Manifest& manifest,
                                  const Job& job, const std::vector<std::string>& given) {
  std::vector<std::string> files = PackageFiles(package, manifest);
  files.insert(files.end(), {package + "/conf/mp_conf.json", job.path, job.plan, job.costs});
  for (const DataJob* data : {&job.data, &job.validation.data}) {
    files.insert(files.end(), data->tokens.begin(), data->tokens.end());
    files.insert(files.end(), data->tensors.begin(), data->tensors.end());
    for (const auto& [name, parts] : data->arrays)
      files.insert(files.end(), parts.begin(), parts.end());
  }
  for (const std::string& path : given) AddGiven(path, files);
  return files;
}

void OutputFiles::Add(const std::string& key, const std::string& file, bool here, bool in_place) {
  if (file.empty()) return;
  try {
    if (here) CheckWritable(file, read_, in_place);
    if (file.starts_with("/dev/")) return;
    std::error_code error;  // set if a link leads to something without a path, such as a pipe
    fs::path place = fs::weakly_canonical(fs::absolute(file, error), error);
    if (error) place = fs::absolute(file, error);
    if (auto [other, fresh] = keys_.emplace(place.string(), key); !fresh)
      throw Error(file + " is where " + other->second + " goes\n  name another file");
  } catch (const std::exception& e) {
    throw Error(key, e.what());
  }
}

}  // namespace pipewright
