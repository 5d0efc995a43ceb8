#include "formats/weights/run_checkpoint.h"

#include <algorithm>
#include <cstdio>
#include <filesystem>
#include <tuple>
#include <utility>

#include "base/error.h"
#include "base/files/atomic_file.h"
#include "base/files/mapped_file.h"
#include "base/files/read_file.h"
#include "base/json.h"
#include "base/text.h"
#include "formats/weights/shard_index.h"

namespace pipewright {

namespace fs = std::filesystem;

namespace {

constexpr char kPrefix[] = "step-";
constexpr char kTemporary[] = ".writing-";
constexpr char kDescription[] = "checkpoint.json";
constexpr char kIndex[] = "model.safetensors.index.json";

// Returns the step in a checkpoint's name; -1 if it is not such a name.
int64_t StepOf(const std::string& name) {
  std::string digits = name.substr(0, 5) == kPrefix ? name.substr(5) : "";
  if (digits.empty() || digits.size() > 18 ||
      digits.find_first_not_of("0123456789") != std::string::npos)
    return -1;
  return std::stoll(digits);
}

bool Exists(const fs::path& path) {
  std::error_code error;  // set for dangling links and for folders without permission
  return fs::exists(path, error);
}

bool Complete(const fs::path& path) { return Exists(path / kDescription); }

// Returns the first line of `latest`; "" if there is none.
std::string NamedLatest(const fs::path& folder) {
  std::error_code error;
  if (!fs::is_regular_file(folder / "latest", error)) return "";
  std::string name = ReadFile((folder / "latest").string());
  return name.substr(0, name.find_first_of("\r\n"));
}

// Returns the complete checkpoint that `latest` names; "" if there is none.
std::string Latest(const fs::path& folder) {
  std::string name = NamedLatest(folder);
  return StepOf(name) >= 0 && Complete(folder / name) ? name : "";
}

const Json& Member(const Json& in, const char* key, const std::string& where) {
  auto found = in.find(key);
  if (!in.is_object() || found == in.end())
    throw Error(where, std::string("\"") + key + "\" is missing");
  return *found;
}

template <typename T>
T Whole(const Json& in, const char* key, const std::string& where) {
  const Json& value = Member(in, key, where);
  if (!value.is_number_integer() || value < 0)
    throw Error(where + ": " + key, "a whole number is expected, not " + value.dump());
  return value.get<T>();
}

std::string Text(const Json& in, const char* key, const std::string& where) {
  const Json& value = Member(in, key, where);
  if (!value.is_string())
    throw Error(where + ": " + key, "a string is expected, not " + value.dump());
  return value.get<std::string>();
}

void Remove(const fs::path& path) {
  // Renames it first, because a half removed folder must not look complete.
  fs::path away = path.parent_path() / (kTemporary + path.filename().string());
  std::error_code error;
  if (path.filename().string().rfind(kTemporary, 0) != 0) {
    fs::rename(path, away, error);
    if (error) return;
  } else {
    away = path;
  }
  fs::remove_all(away, error);  // a folder under this name that cannot be removed does no harm
}

}  // namespace

std::string CheckpointName(int64_t step) {
  char name[32];
  std::snprintf(name, sizeof name, "%s%08lld", kPrefix, static_cast<long long>(step));
  return name;
}

std::string ShardName(int module) { return "module" + std::to_string(module) + ".safetensors"; }

std::string ReplicaName(int module, int replica, int replicas) {
  return "module" + std::to_string(module) + ".replica" + std::to_string(replica) + "of" +
         std::to_string(replicas) + ".state.safetensors";
}

static constexpr char kCopies[] = "copies-rank";

std::string CopiesName(int rank) { return kCopies + std::to_string(rank) + ".safetensors"; }

bool IsCopies(const std::string& file) { return file.starts_with(kCopies); }

static bool IsShardName(std::string name) {
  if (IsCopies(name)) return true;
  for (const std::string_view end : {".safetensors", ".state"})
    if (name.ends_with(end)) name.resize(name.size() - end.size());
  if (const size_t replica = name.find(".replica"); replica != std::string::npos)
    name.resize(replica);
  return name.starts_with("module") && name.size() > 6 &&
         name.find_first_not_of("0123456789", 6) == std::string::npos;
}

std::string StateFileOf(const std::string& weights_file) {
  return weights_file.substr(0, weights_file.rfind('.')) + ".state.safetensors";
}

static std::string HashText(uint64_t hash) {
  char text[17];
  std::snprintf(text, sizeof text, "%016llx", static_cast<unsigned long long>(hash));
  return text;
}

std::string HashFile(const std::string& path) {
  MappedFile file(path);
  uint64_t hash = Hash("");
  constexpr uint64_t kPiece = 1 << 20;
  std::string piece;
  for (uint64_t at = 0; at < file.bytes().size(); at += kPiece) {
    piece.resize(std::min<uint64_t>(kPiece, file.bytes().size() - at));
    file.Read(at, piece.data(), piece.size());
    hash = Hash(piece, hash);
  }
  return HashText(hash);
}

void WriteRunCheckpoint(const RunCheckpoint& checkpoint) {
  nlohmann::json index;
  index["metadata"] = nlohmann::json::object();
  index["weight_map"] = checkpoint.weight_of;
  const fs::path folder = checkpoint.path;
  const std::string index_path = (folder / kIndex).string();
  WriteFile(index_path, index.dump(2) + "\n");
  std::map<std::string, CheckpointFile> all = checkpoint.files;
  all[kIndex] = {fs::file_size(index_path), HashFile(index_path), ""};
  Json files = Json::object();
  for (const auto& [name, file] : all) {
    files[name] = {{"bytes", file.bytes}, {"hash", file.hash}};
    if (!file.host.empty()) files[name]["host"] = file.host;
  }
  Json out{{"step", checkpoint.step},
           {"data", {{"epoch", checkpoint.data.epoch}, {"sample", checkpoint.data.sample}}},
           {"seed", checkpoint.seed},
           {"optimizer", checkpoint.optimizer},
           {"loss_scale",
            {{"factor", checkpoint.loss_scale.factor},
             {"good_steps", checkpoint.loss_scale.good_steps}}},
           {"job", ParseJson(checkpoint.job, "job")},
           {"read", checkpoint.read},
           {"files", files}};
  out["hash"] = HexHash(out.dump());
  WriteFile((folder / kDescription).string(), FormatJson(out));
}

RunCheckpoint ReadRunCheckpoint(const std::string& path) {
  RunCheckpoint checkpoint;
  fs::path folder = path;
  if (folder.filename() == "latest") folder = folder.parent_path();
  if (!Complete(folder) && fs::is_directory(folder)) {
    std::vector<std::string> found = ListCheckpoints(folder.string());
    if (!found.empty()) folder = found[0];
  }
  if (!Complete(folder))
    throw Error(path, "no complete checkpoint is there",
                "a checkpoint is a folder with a checkpoint.json, as `pipewright-run train` "
                "writes them into the job's checkpoint.to");
  checkpoint.path = folder.string();
  std::string where = (folder / kDescription).string();
  Json in = ReadJson(where);
  const std::string hash = Text(in, "hash", where);
  in.erase("hash");
  if (HexHash(in.dump()) != hash)
    throw Error(where, "has other content than was written (its hash differs)");
  checkpoint.hash = hash;
  checkpoint.step = Whole<int64_t>(in, "step", where);
  // A copy may have any name that is not another step's.
  if (int64_t named = StepOf(folder.filename().string()); named >= 0 && named != checkpoint.step)
    throw Error(where + ": step", "is " + std::to_string(checkpoint.step) +
                                      ", and the folder is named " + folder.filename().string());
  const Json& data = Member(in, "data", where);
  checkpoint.data.epoch = Whole<int64_t>(data, "epoch", where + ": data");
  checkpoint.data.sample = Whole<int64_t>(data, "sample", where + ": data");
  checkpoint.seed = Whole<uint64_t>(in, "seed", where);
  checkpoint.optimizer = Text(in, "optimizer", where);
  const Json& scale = Member(in, "loss_scale", where);
  const Json& factor = Member(scale, "factor", where + ": loss_scale");
  if (!factor.is_number())
    throw Error(where + ": factor", "a number is expected, not " + factor.dump());
  checkpoint.loss_scale = {factor.get<double>(),
                           Whole<int64_t>(scale, "good_steps", where + ": loss_scale")};
  checkpoint.job = Member(in, "job", where).dump();
  if (in.contains("read"))  // earlier versions wrote none
    for (const auto& [what, found] : in["read"].items())
      checkpoint.read[what] = Text(in["read"], what.c_str(), where + ": read");
  const Json& files = Member(in, "files", where);
  if (!files.is_object()) throw Error(where + ": files", "an object is expected");
  for (const auto& [name, file] : files.items())
    checkpoint.files[name] = {Whole<uint64_t>(file, "bytes", where + ": " + name),
                              Text(file, "hash", where + ": " + name),
                              file.contains("host") ? Text(file, "host", where + ": " + name) : ""};
  std::string index = (folder / kIndex).string();
  VerifyShard(checkpoint, kIndex);
  checkpoint.weight_of = ParseShardIndex(ReadFile(index), index).shard_of;
  for (const auto& [name, file] : checkpoint.weight_of)
    if (!checkpoint.files.count(file))
      throw Error(index, "\"" + name + "\" lies in " + file + ", which checkpoint.json lacks");
  return checkpoint;
}

static Error OtherContent(const std::string& path) {
  return Error(path, "has other content than was written (its hash differs)");
}

void CheckShardSize(const RunCheckpoint& checkpoint, const std::string& file) {
  std::string path = (fs::path(checkpoint.path) / file).string();
  auto known = checkpoint.files.find(file);
  if (known == checkpoint.files.end()) throw Error(path, "is not in checkpoint.json");
  std::error_code error;
  uint64_t bytes = fs::file_size(path, error);
  if (error && !known->second.host.empty())
    throw Error(path, "the shard is missing: host " + known->second.host + " wrote it",
                "copy it here from there: the hosts did not share the folder");
  if (error) throw Error(path, file == kIndex ? "is missing" : "the shard is missing");
  if (bytes != known->second.bytes)
    throw Error(path, "has " + std::to_string(bytes) + " bytes, " +
                          std::to_string(known->second.bytes) + " were written");
}

void CheckShardHash(const RunCheckpoint& checkpoint, const std::string& file, uint64_t hash) {
  if (HashText(hash) != checkpoint.files.at(file).hash)
    throw OtherContent((fs::path(checkpoint.path) / file).string());
}

void VerifyShard(const RunCheckpoint& checkpoint, const std::string& file) {
  CheckShardSize(checkpoint, file);
  const std::string path = (fs::path(checkpoint.path) / file).string();
  if (HashFile(path) != checkpoint.files.at(file).hash) throw OtherContent(path);
}

size_t VerifyRunCheckpoint(const std::string& path) {
  const bool is_folder = fs::is_directory(path);
  const fs::path folder = is_folder ? fs::path(path) : fs::path(path).parent_path();
  if (!Complete(folder) && !(is_folder && !ListCheckpoints(path).empty())) return 0;
  const std::string name = fs::path(path).filename().string();
  const bool alone = !is_folder && name != kIndex && name != kDescription;
  RunCheckpoint checkpoint;
  try {
    checkpoint = ReadRunCheckpoint(folder.string());
  } catch (const Error&) {
    if (alone && !IsShardName(name)) return 0;  // it need not be part of the damaged checkpoint
    throw;
  }
  if (alone) {
    if (!checkpoint.files.count(name)) return 0;  // it is not part of the checkpoint
    VerifyShard(checkpoint, name);
    return 1;
  }
  for (const auto& [file, written] : checkpoint.files) VerifyShard(checkpoint, file);
  return checkpoint.files.size();
}

int64_t LatestStep(const std::string& folder) { return StepOf(NamedLatest(folder)); }

std::vector<std::string> ListCheckpoints(const std::string& folder) {
  // Each entry says whether it is the latest, whether it is not later, its step, and its path.
  std::vector<std::tuple<bool, bool, int64_t, std::string>> found;
  if (!fs::is_directory(folder)) return {};
  const std::string latest = Latest(folder);
  const int64_t last = LatestStep(folder);
  for (const auto& entry : fs::directory_iterator(folder)) {
    const std::string name = entry.path().filename().string();
    const int64_t step = StepOf(name);
    if (step >= 0 && Complete(entry.path()))
      found.emplace_back(name == latest, last < 0 || step <= last, step, entry.path().string());
  }
  std::sort(found.rbegin(), found.rend());
  std::vector<std::string> paths;
  for (auto& one : found) paths.push_back(std::move(std::get<3>(one)));
  return paths;
}

std::vector<std::string> IncompleteCheckpoints(const std::string& folder, bool step_folders) {
  std::vector<std::string> found;
  if (!fs::is_directory(folder)) return found;
  for (const auto& entry : fs::directory_iterator(folder))
    if (StepOf(entry.path().filename().string()) >= 0 && !Complete(entry.path()))
      found.push_back(entry.path().string() + ": has no " + kDescription);
  std::sort(found.begin(), found.end());
  const std::string latest = NamedLatest(folder);
  const fs::path pointer = fs::path(folder) / "latest";
  if (!step_folders && !latest.empty() && StepOf(latest) < 0)
    found.push_back(pointer.string() + ": names no checkpoint: " + Quote(latest.substr(0, 80)));
  else if (!step_folders && !latest.empty() && !Exists(fs::path(folder) / latest))
    found.push_back(pointer.string() + ": names " + latest + ", which is not there");
  return found;
}

std::string TemporaryCheckpoint(const std::string& folder, const std::string& run, int64_t step) {
  return (fs::path(folder) / (kTemporary + run + "-" + CheckpointName(step))).string();
}

void CleanCheckpoints(const std::string& folder) {
  if (!fs::is_directory(folder)) return;
  std::vector<fs::path> left;
  for (const auto& entry : fs::directory_iterator(folder))
    for (const char* beginning : {kTemporary, "latest.tmp"})
      if (entry.path().filename().string().starts_with(beginning)) left.push_back(entry.path());
  for (const fs::path& path : left) Remove(path);
}

std::string CommitCheckpoint(const std::string& temporary, const std::string& folder, int64_t step,
                             int64_t keep) {
  fs::path path = fs::path(folder) / CheckpointName(step);
  SyncFolder(temporary);
  std::error_code error;
  if (const fs::file_status there = fs::symlink_status(path, error);
      fs::exists(there) && !fs::is_directory(there))
    Remove(path);
  if (RenameOrExchange(temporary, path.string())) Remove(temporary);
  SyncFolder(folder);
  WriteFile((fs::path(folder) / "latest").string(), path.filename().string() + "\n");
  SyncFolder(folder);
  RemoveOlderCheckpoints(folder, step, keep);
  return path.string();
}

void RemoveOlderCheckpoints(const std::string& folder, int64_t step, int64_t keep) {
  std::vector<std::pair<int64_t, fs::path>> older;
  for (const std::string& other : ListCheckpoints(folder)) {
    int64_t its_step = StepOf(fs::path(other).filename().string());
    if (its_step <= step) older.emplace_back(its_step, other);
  }
  std::sort(older.rbegin(), older.rend());
  for (size_t i = static_cast<size_t>(keep); keep > 0 && i < older.size(); ++i)
    Remove(older[i].second);
}

}  // namespace pipewright
