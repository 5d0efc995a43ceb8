#include "runtime/checkpoint/checkpoint.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <chrono>
#include <filesystem>
#include <functional>
#include <set>
#include <thread>
#include <utility>

#include "base/error.h"
#include "base/files/atomic_file.h"
#include "base/files/output_path.h"
#include "base/files/read_file.h"
#include "base/json.h"
#include "formats/weights/checkpoint.h"
#include "formats/weights/safetensors.h"
#include "runtime/exec/phase.h"
#include "runtime/module/stored_weights.h"
#include "runtime/not_finite.h"
#include "runtime/stage/offload.h"
#include "tensors/device_memory.h"
#include "tensors/dtype.h"
#include "tensors/finite.h"

namespace pipewright {

namespace fs = std::filesystem;
using std::chrono::milliseconds;

// In memory this is a copy; a tensor on disk is read when it is written to the checkpoint.
struct TensorToSave {
  at::Tensor tensor;  // on the meta device if it is on disk
  std::function<void(const ByteSink&)> read = nullptr;
};

namespace {

// Tells the watchdog that a thread is writing, so that a long write does not look like a stall.
class Writing {
 public:
  explicit Writing(StatusFile& status) : status_(status) { status_.BeginWriting(); }
  ~Writing() { status_.EndWriting(); }

 private:
  StatusFile& status_;
};

int FirstHolder(const Conf& conf, int module) {
  return conf.stage_to_ranks[conf.module_to_stage[module]][0];
}

std::string DoneFile(const std::string& folder, int rank) {
  return folder + "/rank" + std::to_string(rank) + ".json";
}

using NamedTensors = std::map<std::string, TensorToSave>;

void WriteTensors(const std::string& path, const NamedTensors& tensors, const Manifest& manifest,
                  const std::string& edited) {
  std::vector<TensorToWrite> list;
  std::map<std::string, std::string> metadata = {kPytorchFormat};
  if (!edited.empty()) metadata[kEditedCode] = edited;
  for (const std::vector<std::string>& names : manifest.tied)
    for (size_t i = 1; i < names.size(); ++i)
      if (tensors.count(names[0])) metadata[names[i]] = names[0];
  for (const auto& [name, saved] : tensors) {
    const at::Tensor& tensor = saved.tensor;
    list.push_back({name, SafetensorsDtype(tensor.scalar_type()), tensor.sizes().vec()});
    if (saved.read)
      list.back().produce = saved.read;
    else
      list.back().bytes = HostBytes(tensor);
  }
  WriteSafetensors(path, std::move(list), metadata);
}

// Throws Error for NaN or infinity from training: the latest checkpoint would be useless.
// State on disk is checked as it is copied; weights on disk are not trained.
void CheckTensors(NamedTensors& tensors, const Session& session) {
  for (auto& [name, saved] : tensors) {
    if (!saved.read) CheckSaved(session, name, saved.tensor);
    if (!saved.read || name.find('/') == std::string::npos) continue;
    saved.read = [&session, name = name, like = saved.tensor,
                  read = std::move(saved.read)](const ByteSink& sink) {
      bool finite = true;
      read([&](std::string_view piece) {
        finite = finite && AllFinite(piece, like.scalar_type());
        sink(piece);
      });
      if (finite) return;
      const at::Tensor whole = at::empty_like(like, at::device(at::kCPU));
      Filler filler(whole);
      read([&](std::string_view piece) { filler.Add(piece); });
      CheckSaved(session, name, whole);
    };
  }
}

// A state in memory is copied because the next step changes it; one on disk stays as it is.
TensorToSave SaveState(const AnyTensor& state) {
  if (const auto* tensor = std::get_if<at::Tensor>(&state)) return {CopyOnHost(*tensor)};
  const auto& stored = std::get<OffloadedTensor>(state);
  return {at::empty(stored.sizes(), at::device(at::kMeta).dtype(stored.dtype())),
          [stored](const ByteSink& sink) { stored.Stream(sink); }};
}

// Names the shard into which this rank writes a tensor that it holds.
struct Place {
  NamedWeight at;  // in its own module
  std::string shard;
};

// Returns the tensors that this rank writes, by their names in files. A tensor goes into the shard
// of the first module that holds it, written by that module's first rank. For each other folder,
// the first rank there that holds the tensor writes a copy.
std::map<std::string, Place> Places(const RunPlan& run, const CheckpointFolder& folder, int rank) {
  const Conf& conf = run.conf;
  std::map<std::string, Place> places;
  std::set<std::string> home;    // written to this rank's folder
  std::set<std::string> copied;  // by this rank, or another that sees the folder
  for (const auto& [name, at] : ParametersAndBuffers(run.manifest)) {
    const int first = FirstHolder(conf, at.module);
    if (first == rank) places[name] = {at, ShardName(at.module)};
    if (folder.first[first] == folder.first[rank]) home.insert(name);
  }
  for (size_t m = 0; m < run.manifest.modules.size(); ++m)
    for (size_t w = 0; w < run.manifest.modules[m].held.size(); ++w) {
      const WeightInfo& info = run.manifest.modules[m].held[w];
      const std::string name = KeptName(run.manifest, info.name);
      if (info.kind == WeightKind::kConstant || home.count(name)) continue;
      for (int holder : conf.stage_to_ranks[conf.module_to_stage[m]])
        if (folder.first[holder] == folder.first[rank] && copied.insert(name).second &&
            holder == rank)
          places[name] = {{static_cast<int>(m), w}, CopiesName(rank)};
    }
  return places;
}

using Shards = std::map<std::string, NamedTensors>;

// Adds this rank's buffers unless it is the first replica of its stage: they may differ from those
// of the first, which the shards hold.
void AddReplicaBuffers(const Session& session, int rank, Shards& shards) {
  const Manifest& manifest = session.run.manifest;
  const Conf& conf = session.run.conf;
  for (size_t m = 0; m < manifest.modules.size(); ++m) {
    const std::vector<int>& replicas = conf.stage_to_ranks[conf.module_to_stage[m]];
    const auto self = std::find(replicas.begin(), replicas.end(), rank);
    if (self == replicas.begin() || self == replicas.end()) continue;
    const std::string file = ReplicaName(static_cast<int>(m),
                                         static_cast<int>(self - replicas.begin()),
                                         static_cast<int>(replicas.size()));
    for (const WeightInfo& info : manifest.modules[m].held) {
      if (info.kind != WeightKind::kBuffer) continue;
      const at::Tensor buffer = session.stages->Weight(static_cast<int>(m), info.name);
      if (info.persistent || buffer._version() > 0 ||
          session.stages->Writes(static_cast<int>(m), info.name))
        shards[file]["buffer/" + KeptName(manifest, info.name)] = {CopyOnHost(buffer)};
    }
  }
}

// Returns this rank's tensors by shard.
Shards Snapshot(const Session& session, const CheckpointFolder& folder, int rank) {
  at::NoGradGuard no_grad;
  const Manifest& manifest = session.run.manifest;
  const OffloadedWeights* disk = session.stages->offloaded();
  Shards shards;
  for (const auto& [name, place] : Places(session.run, folder, rank)) {
    const auto& [at, shard] = place;
    const WeightInfo& info = manifest.modules[at.module].held[at.index];
    if (disk && disk->OnDisk(at.module, at.index)) {
      shards[shard][name] = {
          at::empty(info.shape, at::device(at::kMeta).dtype(DtypeOf(info.dtype))),
          [disk, at = at](const ByteSink& sink) { disk->Read(at.module, at.index, sink); }};
      continue;
    }
    at::Tensor weight = session.stages->Weight(at.module, info.name);
    NamedTensors& state = shards[StateFileOf(shard)];
    if (info.persistent)
      shards[shard][name] = {CopyOnHost(weight)};
    // Unwritten ones are as in the package. Norms write without a new version.
    else if (weight._version() > 0 || session.stages->Writes(at.module, info.name))
      state["buffer/" + name] = {CopyOnHost(weight)};
    if (info.kind != WeightKind::kParameter) continue;
    const Updater& updater = session.stages->updater();
    const int64_t steps = updater.Steps(at.module, at.index);
    if (steps == 0) continue;
    state["step/" + name] = {at::scalar_tensor(steps, at::kLong)};
    for (const auto& [part, tensor] : updater.StateTensors(at.module, at.index))
      state[part + "/" + name] = SaveState(tensor);
  }
  AddReplicaBuffers(session, rank, shards);
  std::erase_if(shards, [](const auto& shard) { return shard.second.empty(); });
  return shards;
}

}  // namespace

struct Checkpointer::Shot {
  int64_t step;
  RunCheckpoint checkpoint;  // its path is the temporary folder
  Shards shards;
  Json written;  // by this rank: see Write
};

Checkpointer::Checkpointer(Session& session, const CheckpointFolder& folder)
    : session_(session), transport_(session.transport), folder_(folder) {
  job_text_ = session.job.text;
  Phase(transport_, "preparing checkpoints", [&] {
    if (Commits()) CleanCheckpoints(folder.path);
  });
}

Checkpointer::~Checkpointer() {
  stop_ = true;
  transport_.status().WaitFor({Awaited::kDisk});
  for (std::future<void>* work : {&written_, &committed_})
    if (work->valid()) work->wait();
  transport_.status().WaitFor({});
}

bool Checkpointer::Commits() const {
  return folder_.first[transport_.rank()] == transport_.rank();
}

// Waits while transfers continue, and notices the failure of another rank.
void Checkpointer::WaitFor(std::future<void>& work) {
  if (!work.valid()) return;
  transport_.WaitUntil([&]() -> Awaited {
    if (work.wait_for(milliseconds(0)) == std::future_status::ready) return {};
    const int missing = missing_;
    return missing < 0 || missing == transport_.rank() ? Awaited{Awaited::kDisk}
                                                       : Awaited{Awaited::kShards, missing};
  });
  work.get();
}

void Checkpointer::Check() {
  for (std::future<void>* work : {&written_, &committed_})
    if (work->valid() && work->wait_for(milliseconds(0)) == std::future_status::ready) work->get();
}

void Checkpointer::AfterStep(int64_t step, const DataPosition& data) {
  Check();
  if (apart_) Exchange(!written_.valid());
  const Job& job = session_.job;
  bool due = job.checkpoint.every > 0 && step % job.checkpoint.every == 0;
  if (due || step == job.steps) Save(step, data);
}

void Checkpointer::Save(int64_t step, const DataPosition& data) {
  WaitFor(written_);
  if (apart_) Exchange(true);
  WaitFor(committed_);
  if (!folder_.shared()) RemoveOlder();
  auto shot = std::make_shared<Shot>();
  shot->step = step;
  shot->checkpoint.path = TemporaryCheckpoint(folder_.path, folder_.run, step);
  shot->checkpoint.step = step;
  shot->checkpoint.data = data;
  shot->checkpoint.seed = session_.job.seed;
  shot->checkpoint.optimizer = OptimizerText(session_.job.optimizer);
  shot->checkpoint.loss_scale = session_.stages->updater().loss_scale();
  shot->checkpoint.job = job_text_;
  for (const Found& found : session_.read) shot->checkpoint.read[found.key] = found.what;
  shot->shards = Snapshot(session_, folder_, transport_.rank());
  written_ = std::async(std::launch::async, [this, shot] { Write(*shot); });
  if (!folder_.shared())
    apart_ = shot;
  else if (Commits())
    committed_ = std::async(std::launch::async, [this, shot] {
      if (Collect(*shot)) Commit(*shot);
    });
}

void Checkpointer::Write(Shot& shot) try {
  const std::string& folder = shot.checkpoint.path;
  {
    const Writing writing(transport_.status());
    CreateFolders(folder);
    shot.written = Json::object();
    for (auto& [shard, tensors] : shot.shards) {
      CheckTensors(tensors, session_);
      std::string path = folder + "/" + shard;
      WriteTensors(path, tensors, session_.run.manifest, session_.edited);
      Json names = Json::array();
      for (const auto& [name, tensor] : tensors) names.push_back(name);
      shot.written[shard] = {
          {"bytes", fs::file_size(path)}, {"hash", HashFile(path)}, {"tensors", names}};
    }
    shot.shards.clear();
  }
  // If the checkpoint were complete before the step's metrics are written, a resumed run would lack
  // them.
  for (; told_ < shot.step; std::this_thread::sleep_for(milliseconds(2)))
    if (stop_) return;
  // The metrics must be on the disk even if the host loses power.
  if (transport_.rank() == 0) SyncOutput(session_.job.metrics);
  if (folder_.shared()) WriteFile(DoneFile(folder, transport_.rank()), shot.written.dump());
} catch (const std::exception& e) {
  throw Error("rank " + std::to_string(transport_.rank()) + ", checkpoint of step " +
              std::to_string(shot.step) + ": " + e.what());
}

void Checkpointer::Add(const Json& written, int rank, RunCheckpoint& checkpoint) const {
  for (const auto& [shard, entry] : written.items()) {
    CheckpointFile& file = checkpoint.files[shard];
    file = {entry["bytes"].get<uint64_t>(), entry["hash"].get<std::string>(), ""};
    if (!folder_.shared()) file.host = folder_.HostOf(rank, transport_.hosts());
    if (shard.find(".state.") != std::string::npos || IsCopies(shard)) continue;
    for (const Json& name : entry["tensors"])
      checkpoint.weight_of[name.get<std::string>()] = shard;
  }
}

// Finds out from files which ranks are done, because their threads are busy with the next step.
// Returns false if the run ends before all are done.
bool Checkpointer::Collect(Shot& shot) try {
  for (int rank = 0; rank < transport_.size(); ++rank) {
    const std::string file = DoneFile(shot.checkpoint.path, rank);
    for (missing_ = rank; !fs::exists(file); std::this_thread::sleep_for(milliseconds(2)))
      if (stop_) return false;
    Add(ReadJson(file), rank, shot.checkpoint);
    fs::remove(file);
  }
  missing_ = -1;
  return true;
} catch (const std::exception& e) {
  throw Error("checkpoint of step " + std::to_string(shot.step) + ": " + e.what());
}

// If hosts do not share the folder, ranks tell each other after each step whether they are done.
// Once all are, one rank per folder writes the same description there.
void Checkpointer::Exchange(bool done) {
  const std::vector<std::string> all =
      transport_.AllGather(done ? apart_->written.dump() : std::string());
  if (std::count(all.begin(), all.end(), "")) return;
  const std::shared_ptr<Shot> shot = std::exchange(apart_, nullptr);
  for (int rank = 0; rank < transport_.size(); ++rank)
    Add(Json::parse(all[rank]), rank, shot->checkpoint);
  to_remove_ = shot->step;
  if (Commits()) committed_ = std::async(std::launch::async, [this, shot] { Commit(*shot); });
}

// Removes older checkpoints once the newer one is complete on every host. Collective.
void Checkpointer::RemoveOlder() {
  transport_.AllGather("");
  if (Commits() && to_remove_ >= 0)
    RemoveOlderCheckpoints(folder_.path, to_remove_, session_.job.checkpoint.keep);
}

void Checkpointer::Commit(const Shot& shot) try {
  const Writing writing(transport_.status());
  if (folder_.lock && folder_.lock->CheckLost())
    throw Error(folder_.path,
                "another run has taken the folder over, since this one gave no sign of life",
                "start only one run with it");
  WriteRunCheckpoint(shot.checkpoint);
  CommitCheckpoint(shot.checkpoint.path, folder_.path, shot.step,
                   folder_.shared() ? session_.job.checkpoint.keep : 0);
} catch (const std::exception& e) {
  throw Error("checkpoint of step " + std::to_string(shot.step) + ": " + e.what());
}

void Checkpointer::Finish() {
  Phase(transport_, "writing the checkpoint", [&] { WaitFor(written_); });
  if (apart_) Exchange(true);
  Phase(transport_, "writing the checkpoint", [&] { WaitFor(committed_); });
  if (!folder_.shared()) RemoveOlder();
}

}  // namespace pipewright
