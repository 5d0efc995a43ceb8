#include "runtime/resume.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <cstdio>
#include <filesystem>
#include <map>
#include <memory>
#include <set>
#include <utility>
#include <vector>

#include "base/dtype.h"
#include "base/error.h"
#include "base/json.h"
#include "base/text.h"
#include "formats/weights/safetensors.h"
#include "runtime/exec/phase.h"
#include "runtime/exec/same_files.h"
#include "runtime/module/stored_weights.h"
#include "runtime/not_finite.h"
#include "runtime/stage/offload.h"
#include "tensors/device_memory.h"
#include "tensors/dtype.h"
#include "tensors/finite.h"

namespace pipewright {

namespace fs = std::filesystem;

namespace {

// A file of the checkpoint, and the tensors of it that this rank keeps in memory. The file is read
// once, while it is verified.
struct Shard {
  std::unique_ptr<SafetensorsFile> file;
  std::map<std::string, at::Tensor> read;  // by name
  std::set<std::string> taken;             // names from `read`

  const TensorInfo* Find(const std::string& name) const { return file->Find(name); }
  const TensorInfo& At(const std::string& name) const { return file->At(name); }
};
using Files = std::map<std::string, Shard>;

// Returns what follows the module in the name of a shard: ".replica1of2.state.safetensors".
std::string Ending(const std::string& file) {
  return file.substr(std::min(file.find('.'), file.size()));
}

// Names the file of this rank's own buffers of a module; "" if the rank is the first replica or
// does not hold the module.
std::string OwnBuffers(const Session& session, size_t module) {
  const Conf& conf = session.run.conf;
  const std::vector<int>& replicas = conf.stage_to_ranks[conf.module_to_stage[module]];
  const auto self = std::find(replicas.begin(), replicas.end(), session.transport.rank());
  if (self == replicas.begin() || self == replicas.end()) return "";
  return ReplicaName(static_cast<int>(module), static_cast<int>(self - replicas.begin()),
                     static_cast<int>(replicas.size()));
}

// Returns the shard that has a buffer, among those with this ending. The module that holds the
// buffer may have had another number in the package that the checkpoint was written from.
Shard* FindBuffer(Files& files, const std::string& name, const std::string& ending) {
  for (auto& [file, shard] : files)
    if (Ending(file) == ending && shard.Find(name)) return &shard;
  return nullptr;
}

// Returns the file that holds a copy of a tensor whose shard lies on another host.
Shard* FindCopy(Files& files, const std::string& name) {
  for (auto& [file, shard] : files)
    if (IsCopies(file) && shard.Find(name)) return &shard;
  return nullptr;
}

// Names the tensors that this rank keeps in memory, as files name them.
std::set<std::string> NamesInMemory(const Session& session) {
  const Manifest& manifest = session.run.manifest;
  std::set<std::string> names;
  for (size_t m = 0; m < manifest.modules.size(); ++m) {
    if (!session.stages->Holds(static_cast<int>(m))) continue;
    for (size_t w = 0; w < manifest.modules[m].held.size(); ++w) {
      const std::string name = KeptName(manifest, manifest.modules[m].held[w].name);
      if (!session.run.on_disk[m][w]) names.insert(name);
      names.insert("buffer/" + name);
      names.insert("step/" + name);
      if (session.job.optimizer.state_on_disk) continue;
      for (const auto& [part, tensor] : OptimizerState().Named()) names.insert(part + "/" + name);
    }
  }
  return names;
}

at::Tensor ReadWhole(const SafetensorsFile& file, const TensorInfo& info) {
  at::Tensor whole = at::empty(info.shape, DtypeOfSafetensors(info.dtype));
  ReadInto(file, info, whole);
  return whole;
}

// Returns true if the file is here, not only on the host that wrote it.
bool IsHere(const RunCheckpoint& checkpoint, const std::string& name) {
  std::error_code failed;
  return checkpoint.files.at(name).host.empty() ||
         fs::exists(fs::path(checkpoint.path) / name, failed);
}

std::unique_ptr<SafetensorsFile> OpenShard(const RunCheckpoint& checkpoint,
                                           const std::string& name) {
  CheckShardSize(checkpoint, name);
  try {
    return std::make_unique<SafetensorsFile>((fs::path(checkpoint.path) / name).string());
  } catch (const Error&) {
    VerifyShard(checkpoint, name);  // says more if the contents differ
    throw;
  }
}

// Reads a whole file of the checkpoint and verifies it. Throws Error for NaN or infinity that
// training made, because the run would fail in its first step.
Shard ReadShard(const RunCheckpoint& checkpoint, const std::string& name, const Session& session,
                const std::set<std::string>& in_memory) {
  Shard shard;
  shard.file = OpenShard(checkpoint, name);
  const SafetensorsFile& file = *shard.file;
  uint64_t hash = Hash(file.HeaderBytes());
  std::vector<const TensorInfo*> in_order, spoilt;
  for (const TensorInfo& info : file.header().tensors) in_order.push_back(&info);
  std::sort(in_order.begin(), in_order.end(), [](const TensorInfo* a, const TensorInfo* b) {
    return std::pair(a->begin, a->end) < std::pair(b->begin, b->end);
  });
  std::string piece;
  for (const TensorInfo* info : in_order) {
    const at::ScalarType type = DtypeOfSafetensors(info->dtype);
    bool finite = true;
    if (in_memory.count(info->name)) {
      const at::Tensor whole = shard.read[info->name] = ReadWhole(file, *info);
      hash = Hash(HostBytes(whole), hash);
      finite = AllFinite(whole);
    } else {
      constexpr uint64_t kPiece = 1 << 20;
      for (uint64_t at = 0, size = info->end - info->begin; at < size; at += piece.size()) {
        piece.resize(std::min(kPiece, size - at));
        file.Read(*info, at, piece.data(), piece.size());
        hash = Hash(piece, hash);
        finite = finite && AllFinite(piece, type);
      }
    }
    if (!finite) spoilt.push_back(info);
  }
  CheckShardHash(checkpoint, name, hash);
  if (!session.options.training || !session.job.stop_on_nan) return shard;
  for (const TensorInfo* info : spoilt) try {
      CheckSaved(session, info->name, ReadWhole(file, *info));
    } catch (const Error& e) {
      throw Error(file.path(), e.what());
    }
  return shard;
}

// Returns the names of the checkpoint's files that have buffers of modules that this rank holds and
// that the index of weights does not list: those outside the state dict, and those of replicas.
// Adds the files that may have the latter and are not here to `elsewhere`.
std::set<std::string> FilesOfBuffers(const RunCheckpoint& checkpoint, const Session& session,
                                     std::set<std::string>& elsewhere) {
  const Manifest& manifest = session.run.manifest;
  std::map<std::string, std::set<std::string>> buffers;  // by the ending of the files
  for (size_t m = 0; m < manifest.modules.size(); ++m) {
    if (!session.stages->Holds(static_cast<int>(m))) continue;
    const std::string own = Ending(OwnBuffers(session, m));
    for (const WeightInfo& info : manifest.modules[m].held) {
      if (info.kind != WeightKind::kBuffer) continue;
      const std::string name = "buffer/" + KeptName(manifest, info.name);
      if (!info.persistent) buffers[Ending(StateFileOf(ShardName(0)))].insert(name);
      if (!own.empty()) buffers[own].insert(name);
    }
  }
  std::set<std::string> found;
  for (auto& [ending, names] : buffers) {
    std::set<std::string> absent;
    for (const auto& [file, written] : checkpoint.files) {
      if (Ending(file) != ending) continue;
      if (!IsHere(checkpoint, file)) {
        absent.insert(file);
        continue;
      }
      const auto shard = OpenShard(checkpoint, file);
      if (std::erase_if(names, [&](const std::string& name) { return shard->Find(name); }))
        found.insert(file);
    }
    // A buffer outside the state dict is in no file until forward writes it.
    if (!names.empty() && ending != Ending(StateFileOf(ShardName(0)))) elsewhere.merge(absent);
  }
  return found;
}

// Reads and verifies the shards of the checkpoint that this rank needs. Restore reports tensors
// that no shard has.
Files ReadShards(const RunCheckpoint& checkpoint, const Session& session) {
  const Manifest& manifest = session.run.manifest;
  const std::set<std::string> in_memory = NamesInMemory(session);
  Files files;
  auto open = [&](const std::string& name) {
    if (!files.count(name)) files[name] = ReadShard(checkpoint, name, session, in_memory);
  };
  for (const auto& [name, file] : checkpoint.files)
    if (IsCopies(name) && IsHere(checkpoint, name)) open(name);
  std::set<std::string> elsewhere;
  for (const std::string& name : FilesOfBuffers(checkpoint, session, elsewhere)) open(name);
  auto need = [&](const std::string& name) {
    if (!checkpoint.files.count(name)) return;
    if (IsHere(checkpoint, name))
      open(name);
    else
      elsewhere.insert(name);
  };
  for (size_t m = 0; m < manifest.modules.size(); ++m) {
    if (!session.stages->Holds(static_cast<int>(m))) continue;
    bool copied = false;  // this host keeps copies of what the module holds
    for (const WeightInfo& info : manifest.modules[m].held) {
      const std::string name = KeptName(manifest, info.name);
      auto shard = checkpoint.weight_of.find(name);
      if (shard == checkpoint.weight_of.end()) continue;
      if (!IsHere(checkpoint, shard->second) && FindCopy(files, name)) {
        copied = true;
        continue;
      }
      need(shard->second);
      need(StateFileOf(shard->second));
    }
    if (!copied) need(StateFileOf(ShardName(static_cast<int>(m))));
  }
  if (elsewhere.empty()) return files;
  std::string list;
  for (const std::string& name : elsewhere)
    list += "\n    " + name + ", which host " + checkpoint.files.at(name).host + " has";
  throw Error(checkpoint.path,
              "lacks shards that this rank needs: the hosts that wrote it did not share the folder",
              "copy them here first:" + list);
}

// Tensors that stay on disk are read here, one at a time.
at::Tensor Read(const Shard& shard, const TensorInfo& info) {
  const auto found = shard.read.find(info.name);
  return found == shard.read.end() ? ReadWhole(*shard.file, info) : found->second;
}

// Returns a tensor that only the caller refers to: several modules may hold a weight.
at::Tensor Take(Shard& shard, const TensorInfo& info) {
  const at::Tensor tensor = Read(shard, info);
  return shard.taken.insert(info.name).second ? tensor : tensor.clone();
}

void CopyInto(const Shard& shard, const TensorInfo& from, const at::Tensor& to) {
  if (from.shape != to.sizes().vec() || DtypeOfSafetensors(from.dtype) != to.scalar_type())
    throw Error(shard.file->path(), Quote(from.name) + " is " + from.dtype + " " + ShapeText(from.shape) +
                                 ", the package's is " + DtypeName(to.scalar_type()) + " " +
                                 ShapeText(to.sizes().vec()));
  Filler(to).Add(HostBytes(Read(shard, from)));
}

[[noreturn]] void Refuse(const RunCheckpoint& checkpoint, const std::string& what,
                         const std::string& cure) {
  throw Error(checkpoint.path, what, cure);
}

// Refuses a checkpoint of another model, optimizer or seed.
void CheckFits(const RunCheckpoint& checkpoint, const Session& session) {
  const Job& job = session.job;
  if (const std::string text = OptimizerText(job.optimizer); checkpoint.optimizer != text)
    Refuse(checkpoint,
           "was written with the optimizer " + checkpoint.optimizer + ", " + job.path + " says " +
               text,
           "start over from its weights: pipewright weights merge makes a file for --weights");
  if (checkpoint.seed != job.seed)
    Refuse(checkpoint,
           "was written with the seed " + std::to_string(checkpoint.seed) + ", " + job.path +
               " says " + std::to_string(job.seed),
           "resume with the same seed, so that no sample is seen twice in an epoch");
  std::vector<std::string> names;
  for (const auto& [name, shard] : checkpoint.weight_of) names.push_back(name);
  if (const auto foreign = ForeignNames(session.run.manifest, names); !foreign.empty())
    Refuse(checkpoint, "holds \"" + foreign[0] + "\", which the package does not have",
           "it was written for another model");
}

// Reads the optimizer's state of the weight from `state`. If that is null or has no state of it,
// the optimizer starts anew.
void RestoreOptimizer(Shard* state, const std::string& name, int module, size_t weight,
                      Session& session) {
  OptimizerState optimizer;
  const TensorInfo* step = state ? state->Find("step/" + name) : nullptr;
  if (!step) return session.stages->updater().SetState(module, weight, {});
  at::Tensor steps = at::empty({}, at::kLong);
  CopyInto(*state, *step, steps);
  optimizer.steps = steps.item<int64_t>();
  for (const auto& [part, tensor] : optimizer.Named()) {
    const TensorInfo* from = state->Find(part + "/" + name);
    if (from) *tensor = Take(*state, *from);
  }
  session.stages->updater().SetState(module, weight, std::move(optimizer));
}

// Restores the buffers that each replica of a stage has for itself.
void RestoreOwnBuffers(Files& files, Session& session) {
  const Manifest& manifest = session.run.manifest;
  for (size_t m = 0; m < manifest.modules.size(); ++m) {
    const std::string ending = Ending(OwnBuffers(session, m));
    if (ending.empty()) continue;
    for (const WeightInfo& info : manifest.modules[m].held) {
      if (info.kind != WeightKind::kBuffer) continue;
      const std::string name = "buffer/" + KeptName(manifest, info.name);
      const Shard* own = FindBuffer(files, name, ending);
      if (!own) continue;
      at::Tensor to = session.stages->Weight(static_cast<int>(m), info.name);
      CopyInto(*own, own->At(name), to);
      to.unsafeGetTensorImpl()->bump_version();
    }
  }
}

// Returns true if the job of the checkpoint had a factor that changes, and began with the same one.
// The job of a program that fills it in by hand has no text: then its factor is taken, too.
bool HadSameScale(const RunCheckpoint& checkpoint, const LossScaleJob& now) {
  if (checkpoint.job.empty()) return true;
  const Json job = ParseJson(checkpoint.job, checkpoint.path + ": job");
  if (!job.contains("loss_scale") || !job["loss_scale"].is_object()) return false;
  return job["loss_scale"].value("initial", kInitialLossScale) == now.initial;
}

void Restore(const RunCheckpoint& checkpoint, Files& files, Session& session) {
  CheckFits(checkpoint, session);
  const Job& job = session.job;
  if (job.loss_scale.interval > 0 && HadSameScale(checkpoint, job.loss_scale))
    session.stages->updater().set_loss_scale(checkpoint.loss_scale);
  const Manifest& manifest = session.run.manifest;
  auto find = [&](const std::string& name) -> Shard* {
    auto shard = files.find(name);
    return shard == files.end() ? nullptr : &shard->second;
  };
  auto holding = [&](const std::string& shard, const std::string& tensor) {
    Shard* home = find(shard);
    return home ? home : FindCopy(files, tensor);
  };
  for (size_t m = 0; m < manifest.modules.size(); ++m)
    for (size_t w = 0; w < manifest.modules[m].held.size(); ++w) {
      const WeightInfo& info = manifest.modules[m].held[w];
      int module = static_cast<int>(m);
      if (info.kind == WeightKind::kConstant) continue;
      if (!session.stages->Holds(module)) continue;
      at::Tensor weight = session.stages->Weight(module, info.name);
      std::string name = KeptName(manifest, info.name);
      Shard* state = nullptr;
      if (info.persistent) {
        auto shard = checkpoint.weight_of.find(name);
        if (shard == checkpoint.weight_of.end())
          Refuse(checkpoint, "holds no \"" + name + "\", which the package has",
                 "it was written for another model");
        const Shard& file = *holding(shard->second, name);
        const bool on_disk = session.run.on_disk[m][w];
        const at::Tensor to = on_disk ? at::empty_like(weight) : weight;
        CopyInto(file, file.At(name), to);
        if (on_disk && HostBytes(OnHost(to)) != HostBytes(OnHost(weight)))
          Refuse(checkpoint, "\"" + name + "\" stays on disk, where it has other values",
                 "train it in memory, or give the weights it was trained with: --weights");
        state = find(shard->second) ? find(StateFileOf(shard->second))
                                    : FindCopy(files, "step/" + name);
      } else {
        state = FindBuffer(files, "buffer/" + name, Ending(StateFileOf(ShardName(0))));
        if (!state) state = FindCopy(files, "buffer/" + name);
        if (!state) continue;  // forward had not written it
        CopyInto(*state, state->At("buffer/" + name), weight);
        weight.unsafeGetTensorImpl()->bump_version();  // marks it as different from the package's
      }
      if (info.kind != WeightKind::kParameter) continue;
      RestoreOptimizer(state, name, module, w, session);
    }
  RestoreOwnBuffers(files, session);
}

}  // namespace

static constexpr char kStartAnew[] =
    "there is no other valid checkpoint: to start over, set checkpoint.to to another folder";

// Checkpoints as pairs of a name for messages and a path.
using Candidates = std::vector<std::pair<std::string, std::string>>;

// Returns the checkpoints that rank 0 sees, which is what all ranks see.
static Candidates CandidatesInShared(const std::string& from, Transport& transport) {
  Json found = Json::array();
  Phase(transport, "looking for checkpoints", [&] {
    if (transport.rank() != 0) return;
    if (fs::exists(fs::path(from) / "checkpoint.json"))
      found.push_back(from);
    else
      for (const std::string& path : ListCheckpoints(from)) found.push_back(path);
    const std::string passed_over = Join(IncompleteCheckpoints(from), "\n  ");
    if (found.empty() && !IncompleteCheckpoints(from, true).empty())
      throw Error(from, "no checkpoint there is complete\n  " + passed_over, kStartAnew);
    if (!passed_over.empty())
      std::fprintf(stderr, "pipewright-run: passed over: %s\n", passed_over.c_str());
  });
  Candidates candidates;
  for (const Json& path : ParseJson(transport.AllGather(found.dump())[0], from))
    candidates.emplace_back(path.get<std::string>(), path.get<std::string>());
  return candidates;
}

// Returns the checkpoints of all hosts, newest first, and last those of later steps than `latest`
// names, as ListCheckpoints does; one checkpoint has the same description on every host. The path
// is this rank's, "" if its host lacks the checkpoint.
static Candidates CandidatesApart(const std::string& from, Transport& transport) {
  Json mine = Json::array();
  int64_t latest = -1;                         // the step that `latest` names
  std::map<std::string, std::string> path_of;  // by hash
  Phase(transport, "looking for checkpoints", [&] {
    std::vector<std::string> own{from};
    if (!fs::exists(fs::path(from) / "checkpoint.json")) {
      own = ListCheckpoints(from);
      latest = LatestStep(from);
    }
    for (const std::string& path : own) try {
        const RunCheckpoint checkpoint = ReadRunCheckpoint(path);
        mine.push_back({checkpoint.step, checkpoint.hash});
        path_of[checkpoint.hash] = path;
      } catch (const Error& e) {
        std::fprintf(stderr, "pipewright-run: passed over: %s\n", e.what());
      }
  });
  std::set<std::pair<int64_t, std::string>> all;
  for (const std::string& of_rank : transport.AllGather(mine.dump()))
    for (const Json& one : ParseJson(of_rank, from))
      all.emplace(one[0].get<int64_t>(), one[1].get<std::string>());
  // A host that died before its part of the newest was complete names an earlier step.
  for (const std::string& of_rank : transport.AllGather(std::to_string(latest)))
    latest = std::max<int64_t>(latest, std::stoll(of_rank));
  Candidates candidates, later;
  for (auto one = all.rbegin(); one != all.rend(); ++one)
    (latest >= 0 && one->first > latest ? later : candidates)
        .emplace_back("the checkpoint of step " + std::to_string(one->first), path_of[one->second]);
  candidates.insert(candidates.end(), later.begin(), later.end());
  return candidates;
}

RunCheckpoint Resume(const std::string& from, Session& session, bool apart) {
  Transport& transport = session.transport;
  // All ranks try the same ones.
  const Candidates candidates =
      apart ? CandidatesApart(from, transport) : CandidatesInShared(from, transport);
  for (size_t i = 0; i < candidates.size(); ++i) {
    const auto& [name, path] = candidates[i];
    RunCheckpoint checkpoint;
    Files files;
    try {
      Phase(transport, "reading the checkpoint", [&] {
        if (path.empty()) throw Error(from, name + " is not complete: this host has no part of it");
        checkpoint = ReadRunCheckpoint(path);
        files = ReadShards(checkpoint, session);
      });
    } catch (const AgreedError& e) {
      if (i + 1 == candidates.size())
        throw AgreedError(std::string(e.what()) + "\n  " + kStartAnew);
      if (transport.rank() == 0)
        std::fprintf(stderr, "%s  the next older checkpoint is tried\n",
                     e.Shown("pipewright-run").c_str());
      continue;
    }
    AgreeOn(transport, {FoundFile("checkpoint", checkpoint.path + "/checkpoint.json", true)});
    Phase(transport, "resuming", [&] { Restore(checkpoint, files, session); });
    return checkpoint;
  }
  return {};
}

}  // namespace pipewright
