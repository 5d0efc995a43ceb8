#include "tune/job/changed_job.h"

#include <filesystem>

#include "base/files/read_file.h"

namespace pipewright {

namespace fs = std::filesystem;

namespace {

// Rewrites the path of a file, which is relative to the folder of its job. Links stay, as where
// jobs are read, and so do empty paths, which stand for no file.
void MovePath(Json& file, const fs::path& from, const fs::path& to) {
  if (!file.is_string() || file.get<std::string>().empty() ||
      fs::path(file.get<std::string>()).is_absolute())
    return;
  const fs::path here = fs::current_path();
  file = (here / from / file.get<std::string>())
             .lexically_normal()
             .lexically_proximate((here / to).lexically_normal())
             .string();
}

void MoveDataPaths(Json& data, const fs::path& from, const fs::path& to) {
  auto move = [&](Json& file) { MovePath(file, from, to); };
  auto move_all = [&](Json& files) {
    if (!files.is_array()) return move(files);
    for (Json& file : files) move(file);
  };
  for (const char* key : {"tokens", "tensors", "plugin"})
    if (data.contains(key)) move_all(data[key]);
  if (data.contains("arrays"))
    for (auto& [name, files] : data["arrays"].items()) move_all(files);
}

}  // namespace

std::string ChangedJob(Json job, const std::string& from, const std::string& to,
                       const JobChanges& changes) {
  const fs::path folder = fs::path(from).parent_path(), target = fs::path(to).parent_path();
  MoveDataPaths(job["data"], folder, target);
  for (const char* key : {"save", "metrics", "tensorboard", "report"})
    if (job.contains(key)) MovePath(job[key], folder, target);
  for (const auto& [section, key] :
       {std::pair{"checkpoint", "to"}, std::pair{"optimizer", "state_folder"}})
    if (job.contains(section) && job[section].contains(key))
      MovePath(job[section][key], folder, target);
  if (job.contains("validation")) MoveDataPaths(job["validation"]["data"], folder, target);
  for (const char* key : {"plan", "costs", "memory", "microbatch_size", "recompute", "accumulate"})
    job.erase(key);
  job["schedule"] = changes.schedule;
  job["microbatches"] = changes.microbatches;
  job["minibatch_size"] = changes.samples;
  if (changes.accumulate > 1) job["accumulate"] = changes.accumulate;
  if (!changes.recompute.is_null()) job["recompute"] = changes.recompute;
  if (changes.threads > 0) job["threads"] = changes.threads;
  if (!changes.body.empty()) job["body"] = changes.body;
  return FormatJson(job);
}

void KeepOnlySteps(Json& job) {
  for (const char* key :
       {"save", "checkpoint", "validation", "report", "tensorboard", "metrics", "device"})
    job.erase(key);
}

}  // namespace pipewright
