#include "runtime/checkpoint.h"

#include <ATen/ATen.h>
#include <unistd.h>

#include <chrono>
#include <filesystem>
#include <functional>
#include <set>
#include <thread>

#include "base/atomic_file.h"
#include "base/error.h"
#include "base/json.h"
#include "base/text.h"
#include "formats/weights/safetensors.h"
#include "runtime/exec/phase.h"
#include "runtime/module/stored_weights.h"
#include "runtime/stage/offload.h"
#include "tensors/dtype.h"

namespace pipewright {

namespace fs = std::filesystem;
using std::chrono::milliseconds;

// In memory this is a copy; a tensor on disk is read when it is written to the checkpoint.
struct TensorToSave {
  at::Tensor tensor;  // on the meta device if it is on disk
  std::function<void(const ByteSink&)> read = nullptr;
};

namespace {

int FirstHolder(const Conf& conf, int module) {
  return conf.stage_to_ranks[conf.module_to_stage[module]][0];
}

std::string DoneFile(const std::string& folder, int rank) {
  return folder + "/rank" + std::to_string(rank) + ".json";
}

using NamedTensors = std::map<std::string, TensorToSave>;

void WriteTensors(const std::string& path, const NamedTensors& tensors, const Manifest& manifest) {
  std::vector<TensorToWrite> list;
  std::map<std::string, std::string> metadata{{"format", "pt"}};
  for (const std::vector<std::string>& names : manifest.tied)
    for (size_t i = 1; i < names.size(); ++i)
      if (tensors.count(names[0])) metadata[names[i]] = names[0];
  for (const auto& [name, saved] : tensors) {
    const at::Tensor& tensor = saved.tensor;
    list.push_back({name, SafetensorsDtype(tensor.scalar_type()), tensor.sizes().vec()});
    if (saved.read)
      list.back().produce = saved.read;
    else
      list.back().bytes = {static_cast<const char*>(tensor.const_data_ptr()), tensor.nbytes()};
  }
  WriteSafetensors(path, std::move(list), metadata);
}

std::string RunName() {
  uint64_t time =
      static_cast<uint64_t>(std::chrono::system_clock::now().time_since_epoch().count());
  return HexHash(std::to_string(getpid()) + "." + std::to_string(time));
}

// A state in memory is copied because the next step changes it; one on disk stays as it is.
TensorToSave SaveState(const AnyTensor& state) {
  if (const auto* tensor = std::get_if<at::Tensor>(&state)) return {tensor->clone()};
  const auto& stored = std::get<OffloadedTensor>(state);
  return {at::empty(stored.sizes(), at::device(at::kMeta).dtype(stored.dtype())),
          [stored](const ByteSink& sink) { stored.Stream(sink); }};
}

// Returns this rank's tensors by shard.
std::map<std::string, NamedTensors> Snapshot(const Session& session, int rank) {
  at::NoGradGuard no_grad;
  const Manifest& manifest = session.run.manifest;
  const OffloadedWeights* disk = session.stages->offloaded();
  std::map<std::string, NamedTensors> shards;
  for (const auto& [name, at] : ParametersAndBuffers(manifest)) {
    if (FirstHolder(session.run.conf, at.module) != rank) continue;
    const WeightInfo& info = manifest.modules[at.module].held[at.index];
    std::string shard = ShardName(at.module);
    if (disk && disk->OnDisk(at.module, at.index)) {
      shards[shard][name] = {
          at::empty(info.shape, at::device(at::kMeta).dtype(DtypeOf(info.dtype))),
          [disk, at = at](const ByteSink& sink) { disk->Read(at.module, at.index, sink); }};
      continue;
    }
    at::Tensor weight = session.stages->Weight(at.module, info.name);
    NamedTensors& state = shards[StateFileOf(shard)];
    if (info.persistent)
      shards[shard][name] = {weight.clone()};
    else if (weight._version() > 0)  // the others are as in the package
      state["buffer/" + name] = {weight.clone()};
    if (info.kind != "parameter") continue;
    const Updater& updater = session.stages->updater();
    const int64_t steps = updater.Steps(at.module, at.index);
    if (steps == 0) continue;
    state["step/" + name] = {at::scalar_tensor(steps, at::kLong)};
    for (const auto& [part, tensor] : updater.StateTensors(at.module, at.index))
      state[part + "/" + name] = SaveState(tensor);
  }
  std::erase_if(shards, [](const auto& shard) { return shard.second.empty(); });
  return shards;
}

}  // namespace

struct Checkpointer::Shot {
  int64_t step;
  DataPosition data;
  LossScale loss_scale;
  std::string folder;  // temporary folder
  std::map<std::string, NamedTensors> shards;
};

Checkpointer::Checkpointer(Session& session)
    : session_(session), transport_(session.transport) {
  std::string run;
  const std::string& folder = session.job.checkpoint.folder;
  job_text_ = session.job.text;
  Phase(transport_, "preparing checkpoints", [&] {
    if (transport_.rank() != 0) return;
    try {
      CreateFolders(folder);
      CheckWritable(folder + "/latest");
      CleanCheckpoints(folder);
    } catch (const std::exception& e) {
      throw Error(session.job.path + ": checkpoint.to", e.what());
    }
    run = RunName();
  });
  run_ = transport_.AllGather(run)[0];
  for (const auto& [name, at] : ParametersAndBuffers(session.run.manifest))
    writers_.insert(FirstHolder(session.run.conf, at.module));
}

Checkpointer::~Checkpointer() {
  stop_ = true;
  for (std::future<void>* work : {&written_, &committed_})
    if (work->valid()) work->wait();
}

// Waits while transfers continue, and notices the failure of another rank.
void Checkpointer::WaitFor(std::future<void>& work) {
  if (!work.valid()) return;
  while (work.wait_for(milliseconds(1)) != std::future_status::ready) transport_.Pending();
  work.get();
}

void Checkpointer::Check() {
  for (std::future<void>* work : {&written_, &committed_})
    if (work->valid() && work->wait_for(milliseconds(0)) == std::future_status::ready) work->get();
}

void Checkpointer::AfterStep(int64_t step, const DataPosition& data) {
  Check();
  const Job& job = session_.job;
  bool due = job.checkpoint.every > 0 && step % job.checkpoint.every == 0;
  if (due || step == job.steps) Save(step, data);
}

void Checkpointer::Save(int64_t step, const DataPosition& data) {
  WaitFor(written_);
  WaitFor(committed_);
  auto shot = std::make_shared<Shot>();
  shot->step = step;
  shot->data = data;
  shot->loss_scale = session_.stages->updater().loss_scale();
  shot->folder = TemporaryCheckpoint(session_.job.checkpoint.folder, run_, step);
  shot->shards = Snapshot(session_, transport_.rank());
  if (writers_.count(transport_.rank()))
    written_ = std::async(std::launch::async, [this, shot] { Write(*shot); });
  if (transport_.rank() == 0)
    committed_ = std::async(std::launch::async, [this, shot] { Commit(*shot); });
}

void Checkpointer::Write(Shot& shot) try {
  CreateFolders(shot.folder);
  Json done = Json::object();
  for (const auto& [shard, tensors] : shot.shards) {
    std::string path = shot.folder + "/" + shard;
    WriteTensors(path, tensors, session_.run.manifest);
    Json names = Json::array();
    for (const auto& [name, tensor] : tensors) names.push_back(name);
    done[shard] = {{"bytes", fs::file_size(path)}, {"hash", HashFile(path)}, {"tensors", names}};
  }
  shot.shards.clear();
  WriteFile(DoneFile(shot.folder, transport_.rank()), done.dump());
} catch (const std::exception& e) {
  throw Error("rank " + std::to_string(transport_.rank()) + ", checkpoint of step " +
              std::to_string(shot.step) + ": " + e.what());
}

// Only files show that another rank is done, because its thread is busy with the next step.
void Checkpointer::Commit(const Shot& shot) try {
  RunCheckpoint checkpoint;
  checkpoint.path = shot.folder;
  checkpoint.step = shot.step;
  checkpoint.data = shot.data;
  checkpoint.seed = session_.job.seed;
  checkpoint.optimizer = OptimizerText(session_.job.optimizer);
  checkpoint.loss_scale = shot.loss_scale;
  checkpoint.job = job_text_;
  for (int rank : writers_) {
    std::string file = DoneFile(shot.folder, rank);
    while (!fs::exists(file)) {
      if (stop_) return;
      std::this_thread::sleep_for(milliseconds(2));
    }
    Json done = ReadJson(file);
    for (const auto& [shard, entry] : done.items()) {
      checkpoint.files[shard] = {entry["bytes"].get<uint64_t>(), entry["hash"].get<std::string>()};
      if (shard.find(".state.") != std::string::npos) continue;
      for (const Json& name : entry["tensors"])
        checkpoint.weight_of[name.get<std::string>()] = shard;
    }
    fs::remove(file);
  }
  WriteRunCheckpoint(checkpoint);
  CommitCheckpoint(shot.folder, session_.job.checkpoint.folder, shot.step,
                   session_.job.checkpoint.keep);
} catch (const std::exception& e) {
  throw Error("checkpoint of step " + std::to_string(shot.step) + ": " + e.what());
}

void Checkpointer::Finish() {
  for (std::future<void>* work : {&written_, &committed_})
    Phase(transport_, "writing the checkpoint", [&] { WaitFor(*work); });
}

}  // namespace pipewright
