#include "tune/saved.h"

#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <vector>

#include "base/error.h"
#include "base/files/atomic_file.h"
#include "base/files/read_file.h"
#include "base/text.h"
#include "tune/job/changed_job.h"
#include "tune/job/minibatches.h"
#include "tune/measure/kept.h"

namespace pipewright {

namespace fs = std::filesystem;

static constexpr char kKey[] = "key.json", kRecorded[] = "tuned.json",
                      kCutOff[] = "cut_off_after";  // beside the key

// Reads JSON; null if the file is missing or damaged.
static Json Readable(const std::string& path) {
  try {
    return ReadJson(path);
  } catch (const Error&) {
    return nullptr;
  }
}

Json TunedKey(const TunedFor& run, const Job& job, const Manifest& manifest) {
  Json text = ParseJson(job.text, job.path);
  for (const char* key : {"steps", "save", "metrics", "report", "tensorboard", "checkpoint",
                          "validation", "log_every", "seed"})
    text.erase(key);
  std::string whole = text.dump();
  for (const std::string& file : {job.plan, job.costs})
    if (!file.empty()) whole += ReadFile(file);
  TuneRequest request;
  request.package = run.package;
  const KeptMeasurements kept = KeptFor(request, manifest);
  Json key = {{"package", kept.code},     {"job", HexHash(whole)},      {"ranks", run.ranks},
              {"hosts", run.start.hosts}, {"mpirun", run.start.mpirun}, {"memory", run.memory},
              {"machine", kept.machine}};
  key["data"] = HexHash(StampsOfData(job));
  key["weights"] = HexHash(StampsOfWeights(run.package, manifest));
  key["rank kind"] = run.in_process ? "threads" : "processes";
  // The validation and the number of samples, which are not in the job's hash, decide this, too.
  if (job.accumulate > 1) key["minibatches"] = WhyNotMerged(job).empty() ? "merged" : "not merged";
  return key;
}

std::string TunedFolder(const std::string& root, const Json& key) {
  return root + "/" + HexHash(key.dump());
}

bool IsTuned(const std::string& folder, const Json& key) {
  std::error_code none;
  Json saved = Readable(folder + "/" + kKey);
  if (!saved.is_object()) return false;
  saved.erase(kCutOff);
  return saved == key && fs::exists(folder + "/job.json", none) &&
         fs::exists(folder + "/conf.json", none);
}

double CutOffAfter(const std::string& folder) {
  const Json saved = Readable(folder + "/" + kKey);
  const Json cut = saved.is_object() ? saved.value(kCutOff, Json()) : Json();
  return cut.is_number() ? cut.get<double>() : 0;
}

void WriteTunedKey(const std::string& folder, const Json& key, double cut_off_after) {
  Json saved = key;
  if (cut_off_after > 0) saved[kCutOff] = cut_off_after;
  WriteFile(folder + "/" + kKey, FormatJson(saved));
}

// Returns the parts in which the folder's key differs.
static std::vector<std::string> DifferingParts(const std::string& folder, const Json& key) {
  std::vector<std::string> parts;
  const Json other = Readable(folder + "/" + kKey);
  if (!other.is_object()) return parts;
  for (const auto& [name, value] : key.items()) {
    const Json before = other.value(name, Json());
    if (before == value) continue;
    const bool plural = name == "data" || name == "weights";
    parts.push_back(plural ? "other " + name
                    : name == "package" || name == "job"
                        ? "another " + name
                        : name + " " + before.dump() + ", not " + value.dump());
  }
  return parts;
}

std::string OtherKey(const std::string& folder, const Json& key) {
  return Join(DifferingParts(folder, key), ", and for ");
}

std::string OtherTuned(const std::string& root, const Json& key) {
  std::string best;
  size_t fewest = key.size() + 1;
  std::error_code none;
  std::vector<std::string> folders;
  for (const auto& entry : fs::directory_iterator(root, none))
    folders.push_back(entry.path().string());
  std::sort(folders.begin(), folders.end());
  for (const std::string& folder : folders) {
    const std::vector<std::string> parts = DifferingParts(folder, key);
    if (parts.empty() || parts.size() >= fewest) continue;
    fewest = parts.size();
    best = folder + " is for " + Join(parts, ", and for ");
  }
  return best;
}

// What tune chose, as in its job.
static Json ChoicesIn(const std::string& folder) {
  const Json job = ReadJson(folder + "/job.json");
  Json choices = {{"conf", HexHash(ReadFile(folder + "/conf.json"))}};
  std::error_code none;
  if (const std::string plan = folder + "/plan.csv"; fs::exists(plan, none))
    choices["plan"] = HexHash(ReadFile(plan));
  for (const char* key :
       {"schedule", "microbatches", "minibatch_size", "recompute", "threads", "body"})
    choices[key] = job.value(key, Json());
  return choices;
}

std::string RenewTunedJob(const std::string& folder, const std::string& path) {
  const Json choices = ChoicesIn(folder);
  JobChanges changes = {choices["schedule"], choices["microbatches"], choices["minibatch_size"]};
  changes.accumulate = ReadJson(folder + "/job.json").value("accumulate", 1);
  changes.recompute = choices["recompute"];
  if (choices["threads"].is_number()) changes.threads = choices["threads"];
  if (choices["body"].is_string()) changes.body = choices["body"];
  const std::string text = ChangedJob(ReadJson(path), path, folder + "/job.json", changes),
                    own = folder + "/job-" + HexHash(text) + ".json";
  std::error_code none;
  if (fs::exists(own, none) && ReadFile(own) == text) return own;
  if (access(folder.c_str(), W_OK) != 0)
    throw Error(
        folder, "cannot be written, and a run whose job has changed keeps its own there",
        "make it writable, start the run without --tune or, unless it resumes, name another "
        "folder: --tuned FOLDER");
  WriteFile(own, text);
  return own;
}

void RecordTuned(const std::string& checkpoints, const std::string& folder) {
  CreateFolders(checkpoints);
  const Json record = {{"folder", fs::absolute(folder).string()}, {"choices", ChoicesIn(folder)}};
  WriteFile(checkpoints + "/" + kRecorded, FormatJson(record));
}

std::string RecordedTuned(const std::string& checkpoints) {
  const std::string path = checkpoints + "/" + kRecorded;
  std::error_code none;
  if (!fs::exists(path, none)) return "";
  const Json record = ReadJson(path);
  const std::string folder = record.value("folder", "");
  const bool there =
      fs::exists(folder + "/job.json", none) && fs::exists(folder + "/conf.json", none);
  if (!there || ChoicesIn(folder) != record.value("choices", Json()))
    throw Error(folder,
                std::string(there ? "has changed since" : "is missing, and") +
                    " the checkpoints in " + checkpoints + " were made with it",
                "restore it, or resume without --tune");
  return folder;
}

}  // namespace pipewright
