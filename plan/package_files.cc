#include "plan/package_files.h"

namespace pipewright {

std::vector<std::string> PackageFiles(const std::string& package, const Manifest& manifest) {
  std::vector<std::string> files = {package + "/manifest.json"};
  for (const ModuleInfo& module : manifest.modules) {
    files.push_back(package + "/" + module.code);
    files.push_back(package + "/" + module.weights);
  }
  return files;
}

std::vector<std::string> RunFiles(const std::string& package, const Manifest& manifest,
                                  const Job& job) {
  std::vector<std::string> files = PackageFiles(package, manifest);
  files.insert(files.end(), {job.path, job.plan, job.costs});
  for (const DataJob* data : {&job.data, &job.validation.data}) {
    files.insert(files.end(), data->tokens.begin(), data->tokens.end());
    files.insert(files.end(), data->tensors.begin(), data->tensors.end());
    for (const auto& [name, parts] : data->arrays)
      files.insert(files.end(), parts.begin(), parts.end());
  }
  return files;
}

}  // namespace pipewright
