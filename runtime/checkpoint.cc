#include "runtime/checkpoint.h"

#include <ATen/ATen.h>
#include <unistd.h>

#include <chrono>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <functional>
#include <set>
#include <thread>

#include "plan/atomic_file.h"
#include "plan/dtype.h"
#include "plan/error.h"
#include "plan/json.h"
#include "plan/safetensors.h"
#include "plan/text.h"
#include "runtime/offload.h"
#include "runtime/weights.h"
#include "tensors/dtype.h"

namespace pipewright {

namespace fs = std::filesystem;
using std::chrono::milliseconds;

// What is in memory is a copy; what is on disk is read when its turn comes.
struct TensorToSave {
  at::Tensor tensor;  // of the meta device: it is on disk
  std::function<void(const ByteSink&)> read = nullptr;
};

namespace {

int FirstHolder(const Conf& conf, int module) {
  return conf.stage_to_ranks[conf.module_to_stage[module]][0];
}

std::string ShardName(int module) { return "module" + std::to_string(module) + ".safetensors"; }

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

// A state in memory is changed by the next step; one on disk stays as it is.
TensorToSave SaveState(const AnyTensor& state) {
  if (const auto* tensor = std::get_if<at::Tensor>(&state)) return {tensor->clone()};
  const auto& stored = std::get<OffloadedTensor>(state);
  return {at::empty(stored.sizes(), at::device(at::kMeta).dtype(stored.dtype())),
          [stored](const ByteSink& sink) { stored.Stream(sink); }};
}

// Of this rank: shard -> tensors.
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
  std::string folder;  // temporary
  std::map<std::string, NamedTensors> shards;
};

Checkpointer::Checkpointer(Session& session, Transport& transport)
    : session_(session), transport_(transport) {
  std::string error, run;
  const std::string& folder = session.job.checkpoint.folder;
  try {
    job_text_ = session.job.text;
    if (transport.rank() == 0) {
      CreateFolders(folder);
      CheckWritable(folder + "/latest");
      CleanCheckpoints(folder);
      run = RunName();
    }
  } catch (const std::exception& e) {
    error = session.job.path + ": checkpoint.to: " + e.what();
  }
  Vote(transport, "preparing checkpoints", error);
  run_ = transport.AllGather(run)[0];
  for (const auto& [name, at] : ParametersAndBuffers(session.run.manifest))
    writers_.insert(FirstHolder(session.run.conf, at.module));
}

Checkpointer::~Checkpointer() {
  stop_ = true;
  for (std::future<void>* work : {&written_, &committed_})
    if (work->valid()) work->wait();
}

// Meanwhile transfers go on, and another rank's failure is noticed.
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

// Only files tell that another rank is done: its thread is busy with the next step.
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
  for (std::future<void>* work : {&written_, &committed_}) {
    std::string error;
    try {
      WaitFor(*work);
    } catch (const Aborted&) {
      throw;
    } catch (const std::exception& e) {
      error = e.what();
    }
    if (work == &written_ && !error.empty()) stop_ = true;
    Vote(transport_, "writing the checkpoint", error);
  }
}

namespace {

using Files = std::map<std::string, std::unique_ptr<SafetensorsFile>>;

// What this rank needs of the checkpoint, verified and opened. A tensor that no shard has is left
// to Restore.
Files OpenShards(const RunCheckpoint& checkpoint, const Session& session) {
  const Manifest& manifest = session.run.manifest;
  Files files;
  for (size_t m = 0; m < manifest.modules.size(); ++m) {
    std::set<std::string> wanted{StateFileOf(ShardName(static_cast<int>(m)))};
    for (const WeightInfo& info : manifest.modules[m].held) {
      if (!session.stages->Holds(static_cast<int>(m))) continue;
      auto shard = checkpoint.weight_of.find(KeptName(manifest, info.name));
      if (shard == checkpoint.weight_of.end()) continue;
      wanted.insert(shard->second);
      wanted.insert(StateFileOf(shard->second));
    }
    if (wanted.size() == 1) continue;  // not of this rank
    for (const std::string& name : wanted) {
      if (files.count(name) || !checkpoint.files.count(name)) continue;
      VerifyShard(checkpoint, name);
      files[name] = std::make_unique<SafetensorsFile>((fs::path(checkpoint.path) / name).string());
    }
  }
  return files;
}

void ReadInto(const SafetensorsFile& file, const TensorInfo& from, const at::Tensor& to) {
  if (from.shape != to.sizes().vec() || DtypeOfSafetensors(from.dtype) != to.scalar_type())
    throw Error(file.path(), Quote(from.name) + " is " + from.dtype + " " + ShapeText(from.shape) +
                                 ", the package's is " + DtypeName(to.scalar_type()) + " " +
                                 ShapeText(to.sizes().vec()));
  if (from.end > from.begin)
    file.Read(from, 0, static_cast<char*>(to.data_ptr()), from.end - from.begin);
}

void Restore(const RunCheckpoint& checkpoint, const Files& files, Session& session) {
  const Job& job = session.job;
  auto refuse = [&](const std::string& what, const std::string& cure) {
    throw Error(checkpoint.path, what, cure);
  };
  if (const std::string text = OptimizerText(job.optimizer); checkpoint.optimizer != text)
    refuse("was written with the optimizer " + checkpoint.optimizer + ", " + job.path + " says " +
               text,
           "start anew from its weights: pipewright weights merge, then --weights");
  if (checkpoint.seed != job.seed)
    refuse("was written with the seed " + std::to_string(checkpoint.seed) + ", " + job.path +
               " says " + std::to_string(job.seed),
           "resume with the same seed, so that no sample is seen twice in an epoch");
  if (job.loss_scale.interval > 0) session.stages->updater().set_loss_scale(checkpoint.loss_scale);
  const Manifest& manifest = session.run.manifest;
  auto find = [&](const std::string& name) -> const SafetensorsFile* {
    auto file = files.find(name);
    return file == files.end() ? nullptr : file->second.get();
  };
  for (size_t m = 0; m < manifest.modules.size(); ++m)
    for (size_t w = 0; w < manifest.modules[m].held.size(); ++w) {
      const WeightInfo& info = manifest.modules[m].held[w];
      int module = static_cast<int>(m);
      if (info.kind == "constant") continue;
      if (!session.stages->Holds(module)) continue;
      at::Tensor weight = session.stages->Weight(module, info.name);
      std::string name = KeptName(manifest, info.name);
      const SafetensorsFile* state = nullptr;
      if (info.persistent) {
        auto shard = checkpoint.weight_of.find(name);
        if (shard == checkpoint.weight_of.end())
          refuse("holds no \"" + name + "\", which the package has",
                 "it was written for another model");
        const SafetensorsFile& file = *files.at(shard->second);
        const bool on_disk = session.run.on_disk[m][w];
        const at::Tensor to = on_disk ? at::empty_like(weight) : weight;
        ReadInto(file, file.At(name), to);
        if (on_disk && std::memcmp(to.data_ptr(), weight.data_ptr(), to.nbytes()) != 0)
          refuse("\"" + name + "\" stays on disk, and is another one there",
                 "train it in memory, or give the weights it was trained with: --weights");
        state = find(StateFileOf(shard->second));
      } else {
        state = find(StateFileOf(ShardName(module)));
        const TensorInfo* buffer = state ? state->Find("buffer/" + name) : nullptr;
        if (!buffer) continue;
        ReadInto(*state, *buffer, weight);
        weight.unsafeGetTensorImpl()->bump_version();  // it differs from the package's
      }
      if (info.kind != "parameter") continue;
      OptimizerState optimizer;
      const TensorInfo* step = state ? state->Find("step/" + name) : nullptr;
      if (!step) {
        session.stages->updater().SetState(module, w, {});
        continue;
      }
      at::Tensor steps = at::empty({}, at::kLong);
      ReadInto(*state, *step, steps);
      optimizer.steps = steps.item<int64_t>();
      for (const auto& [part, tensor] : optimizer.Named()) {
        const TensorInfo* from = state->Find(part + "/" + name);
        if (!from) continue;
        *tensor = at::empty(from->shape, DtypeOfSafetensors(from->dtype));
        ReadInto(*state, *from, *tensor);
      }
      session.stages->updater().SetState(module, w, std::move(optimizer));
    }
}

}  // namespace

static constexpr char kStartAnew[] =
    "no other checkpoint is there that holds: to start anew, let checkpoint.to name another folder";

RunCheckpoint Resume(const std::string& from, Session& session, Transport& transport) {
  // All ranks try the same ones.
  Json found = Json::array();
  std::string error;
  if (transport.rank() == 0) try {
      if (fs::exists(fs::path(from) / "checkpoint.json"))
        found.push_back(from);
      else
        for (const std::string& path : ListCheckpoints(from)) found.push_back(path);
      const std::string passed_over = Join(IncompleteCheckpoints(from), "\n  ");
      if (found.empty() && !IncompleteCheckpoints(from, true).empty())
        error = Error(from, "no checkpoint there is complete\n  " + passed_over, kStartAnew).what();
      else if (!passed_over.empty())
        std::fprintf(stderr, "pipewright-run: passed over: %s\n", passed_over.c_str());
    } catch (const std::exception& e) {
      error = e.what();
    }
  Vote(transport, "looking for checkpoints", error);
  Json paths = ParseJson(transport.AllGather(found.dump())[0], from);
  for (size_t i = 0; i < paths.size(); ++i) {
    RunCheckpoint checkpoint;
    Files files;
    error.clear();
    try {
      checkpoint = ReadRunCheckpoint(paths[i].get<std::string>());
      files = OpenShards(checkpoint, session);
    } catch (const std::exception& e) {
      error = e.what();
    }
    try {
      Vote(transport, "reading the checkpoint", error);
    } catch (const AgreedError& e) {
      if (i + 1 == paths.size()) throw AgreedError(std::string(e.what()) + "\n  " + kStartAnew);
      if (transport.rank() == 0)
        std::fprintf(stderr, "%s  the next older checkpoint is tried\n",
                     e.Shown("pipewright-run").c_str());
      continue;
    }
    try {
      Restore(checkpoint, files, session);
    } catch (const std::exception& e) {
      error = e.what();
    }
    Vote(transport, "resuming", error);
    return checkpoint;
  }
  return {};
}

}  // namespace pipewright
