#include "runtime/resume.h"

#include <ATen/ATen.h>

#include <cstdio>
#include <cstring>
#include <filesystem>
#include <memory>
#include <set>

#include "base/dtype.h"
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

namespace {

using Files = std::map<std::string, std::unique_ptr<SafetensorsFile>>;

// Opens and verifies the shards of the checkpoint that this rank needs. Restore reports tensors
// that no shard has.
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
    if (wanted.size() == 1) continue;  // not on this rank
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
  std::vector<std::string> names;
  for (const auto& [name, shard] : checkpoint.weight_of) names.push_back(name);
  if (const auto foreign = ForeignNames(session.run.manifest, names); !foreign.empty())
    refuse("holds \"" + foreign[0] + "\", which the package does not have",
           "it was written for another model");
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
        weight.unsafeGetTensorImpl()->bump_version();  // marks it as different from the package's
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

RunCheckpoint Resume(const std::string& from, Session& session) {
  Transport& transport = session.transport;
  // All ranks try the same ones.
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
  Json paths = ParseJson(transport.AllGather(found.dump())[0], from);
  for (size_t i = 0; i < paths.size(); ++i) {
    RunCheckpoint checkpoint;
    Files files;
    try {
      Phase(transport, "reading the checkpoint", [&] {
        checkpoint = ReadRunCheckpoint(paths[i].get<std::string>());
        files = OpenShards(checkpoint, session);
      });
    } catch (const AgreedError& e) {
      if (i + 1 == paths.size()) throw AgreedError(std::string(e.what()) + "\n  " + kStartAnew);
      if (transport.rank() == 0)
        std::fprintf(stderr, "%s  the next older checkpoint is tried\n",
                     e.Shown("pipewright-run").c_str());
      continue;
    }
    Phase(transport, "resuming", [&] { Restore(checkpoint, files, session); });
    return checkpoint;
  }
  return {};
}

}  // namespace pipewright
