#include "runtime/weights.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <map>
#include <optional>
#include <set>

#include "base/error.h"
#include "base/files/missing_file.h"
#include "base/json.h"
#include "base/text.h"
#include "formats/weights/checkpoint.h"
#include "formats/weights/safetensors.h"
#include "runtime/exec/phase.h"
#include "runtime/module/messages.h"
#include "runtime/module/module_weights.h"
#include "runtime/module/stored_weights.h"
#include "tensors/device_memory.h"
#include "tensors/dtype.h"

namespace pipewright {

namespace {

// A tensor of the file, its origin, and the tag of its message.
struct Source {
  int tag = 0;
  int module = -1;
  const WeightInfo* info = nullptr;
};

std::map<std::string, Source> Sources(const Manifest& manifest, bool gradients) {
  std::map<std::string, Source> sources;
  for (size_t m = 0; m < manifest.modules.size(); ++m)
    for (const WeightInfo& info : manifest.modules[m].held) {
      if (gradients ? !info.requires_grad
                    : info.kind == WeightKind::kConstant || !info.persistent)
        continue;
      sources.emplace(KeptName(manifest, info.name), Source{0, static_cast<int>(m), &info});
    }
  int tag = 0;
  for (auto& [name, source] : sources) source.tag = ++tag;
  return sources;
}

void Save(const std::string& path, const Manifest& manifest, const Conf& conf, Transport& transport,
          bool gradients, const std::string& edited,
          const std::function<at::Tensor(int module, const std::string& name)>& find) {
  std::map<std::string, Source> sources = Sources(manifest, gradients);
  std::map<std::string, std::string> metadata = {kPytorchFormat};
  for (const std::vector<std::string>& names : manifest.tied)
    for (size_t i = 1; i < names.size(); ++i) metadata[names[i]] = names[0];
  if (!edited.empty()) metadata[kEditedCode] = edited;
  auto owner = [&](const Source& source) {
    return conf.stage_to_ranks[conf.module_to_stage[source.module]][0];
  };
  auto value = [&](const Source& source) {
    at::Tensor tensor = find(source.module, source.info->name);
    // A parameter that no loss depends on has no gradient.
    if (!tensor.defined()) tensor = at::zeros(source.info->shape, DtypeOf(source.info->dtype));
    return OnHost(tensor.contiguous());
  };
  // Follows the order of the file, so that tensors read from disk for sending need not all be held
  // in memory.
  std::vector<TensorToWrite> tensors;
  for (const auto& [name, source] : sources)
    tensors.push_back({name, SafetensorsDtype(DtypeOf(source.info->dtype)), source.info->shape});
  SortAsWritten(tensors);
  if (transport.rank() != 0) {
    for (const TensorToWrite& tensor : tensors)
      if (const Source& source = sources.at(tensor.name); owner(source) == transport.rank())
        transport.WaitFor(
            transport.Send(0, source.tag, MakeBundle({value(source)})),
            {.kind = Awaited::kTensor, .rank = 0, .microbatch = source.tag, .sends = 1});
    Phase(transport, "saving", [] {});
    return;
  }
  std::set<int> received;
  auto receive = [&](const Source& source) {
    at::Tensor tensor = at::empty(source.info->shape, DtypeOf(source.info->dtype));
    transport.WaitFor(transport.Recv(owner(source), source.tag, MakeBundle({tensor})),
                      {.kind = Awaited::kTensor, .rank = owner(source), .microbatch = source.tag});
    received.insert(source.tag);
    return tensor;
  };
  const std::vector<TensorToWrite> order = tensors;
  for (TensorToWrite& tensor : tensors)
    tensor.produce = [&, &source = sources.at(tensor.name)](const ByteSink& sink) {
      at::Tensor data = owner(source) == 0 ? value(source) : receive(source);
      sink(HostBytes(data));
    };
  Phase(transport, "saving", [&] {
    try {
      WriteSafetensors(path, std::move(tensors), metadata);
    } catch (const std::exception&) {
      // The other ranks wait until their tensors are taken.
      for (const TensorToWrite& tensor : order)
        if (const Source& source = sources.at(tensor.name);
            owner(source) != 0 && !received.count(source.tag))
          receive(source);
      throw;
    }
  });
}

}  // namespace

void SaveWeights(const std::string& path, const Manifest& manifest, const Conf& conf,
                 const TorchStages& stages, Transport& transport, const std::string& edited) {
  Save(path, manifest, conf, transport, false, edited,
       [&](int module, const std::string& name) { return stages.Weight(module, name); });
}

void SaveGradients(const std::string& path, const Manifest& manifest, const Conf& conf,
                   const TorchStages& stages, Transport& transport) {
  Save(path, manifest, conf, transport, true, "",
       [&](int module, const std::string& name) { return stages.LastGradient(module, name); });
}

bool IsTakenFrom(const Checkpoint& checkpoint, const Manifest& manifest, const WeightInfo& weight) {
  if (weight.kind == WeightKind::kConstant || !weight.persistent) return false;
  const bool left_out =
      weight.kind == WeightKind::kBuffer && !FindStored(checkpoint, manifest, weight.name) &&
      checkpoint.metadata.count(weight.name) > 0 && !SharedInFile(checkpoint, weight);
  return !left_out;  // forward makes it from a part of the other tensor
}

// Throws Error if the module's file has other values of a weight than another module's file had.
static void CheckSameCopy(const SafetensorsFile& file, const WeightInfo& info,
                          const at::Tensor& weight) {
  const TensorInfo& copy = CheckedWeight(file, info);
  const at::Tensor there = OnHost(weight);
  const std::string_view bytes = HostBytes(there);
  std::string piece;
  for (size_t at = 0; at < bytes.size(); at += piece.size()) {
    piece.resize(std::min(bytes.size() - at, size_t{1} << 20));
    file.Read(copy, at, piece.data(), piece.size());
    if (piece != bytes.substr(at, piece.size())) throw CopiesDiffer(file.path(), info.name);
  }
}

void LoadPackageWeights(const std::string& package, const Manifest& manifest, TorchStages& stages,
                        const std::vector<std::vector<bool>>& on_disk) {
  std::set<const void*> read;  // some weights share one tensor
  for (size_t m = 0; m < manifest.modules.size(); ++m) {
    const ModuleInfo& module = manifest.modules[m];
    if (!stages.Holds(static_cast<int>(m))) continue;
    std::optional<SafetensorsFile> file;
    for (size_t w = 0; w < module.held.size(); ++w) {
      const WeightInfo& info = module.held[w];
      // The others were read with the module's code, or stay on disk.
      if (info.kind == WeightKind::kConstant || !info.persistent || on_disk[m][w]) continue;
      const at::Tensor weight = stages.Weight(static_cast<int>(m), info.name);
      if (!file) file.emplace(PackageFile(package, module.weights));
      if (read.insert(MemoryOf(weight)).second)
        ReadInto(*file, CheckedWeight(*file, info), weight);
      else
        CheckSameCopy(*file, info, weight);
    }
  }
}

LoadedWeights LoadWeights(const std::string& path, const Manifest& manifest, TorchStages& stages,
                          const std::vector<std::vector<bool>>& on_disk) {
  Checkpoint checkpoint = OpenCheckpoint(path);
  // If a file does not fit, all ranks that see it name the same tensor.
  auto refuse = [&] {
    for (const ModuleInfo& module : manifest.modules)
      for (const WeightInfo& info : module.held)
        if (IsTakenFrom(checkpoint, manifest, info))
          StoredWeight(checkpoint, manifest, info);
  };
  std::set<const void*> written;  // some weights share one tensor
  for (size_t m = 0; m < manifest.modules.size(); ++m)
    for (size_t w = 0; w < manifest.modules[m].held.size(); ++w) {
      const WeightInfo& info = manifest.modules[m].held[w];
      if (!IsTakenFrom(checkpoint, manifest, info)) continue;
      if (!on_disk.empty() && on_disk[m][w]) continue;
      at::Tensor weight = stages.Weight(static_cast<int>(m), info.name);
      if (!weight.defined() || !written.insert(MemoryOf(weight)).second) continue;
      Filler filler(weight);
      const StoredTensor* stored = nullptr;
      try {
        stored = &StoredWeight(checkpoint, manifest, info);
      } catch (const Error&) {
        refuse();
        throw;
      }
      ReadTensor(checkpoint, *stored, [&](std::string_view piece) { filler.Add(piece); });
    }
  std::vector<std::string> names;
  for (const StoredTensor& tensor : checkpoint.tensors) names.push_back(tensor.name);
  auto edited = checkpoint.metadata.find(kEditedCode);
  return {ForeignNames(manifest, names), edited == checkpoint.metadata.end() ? "" : edited->second};
}

void CheckSharedCopies(const Manifest& manifest, const Conf& conf, const TorchStages& stages,
                       const std::vector<std::vector<bool>>& on_disk, Transport& transport) {
  // Copies that must have the same bits on all ranks: of a shared weight, or of a replicated
  // module.
  struct Copies {
    std::string name;
    std::vector<SharedWeight::Holder> holders;
  };
  std::vector<Copies> all_copies;
  for (const SharedWeight& weight : manifest.shared)
    all_copies.push_back({"shared weight \"" + weight.holders[0].name + "\"", weight.holders});
  for (size_t m = 0; m < manifest.modules.size(); ++m) {
    if (conf.stage_to_ranks[conf.module_to_stage[m]].size() < 2) continue;
    for (const WeightInfo& info : manifest.modules[m].held)
      if (info.kind == WeightKind::kParameter)
        all_copies.push_back({"weight \"" + info.name + "\"", {{static_cast<int>(m), info.name}}});
  }
  std::erase_if(all_copies, [&](const Copies& copies) {
    for (const SharedWeight::Holder& holder : copies.holders) {
      const std::vector<WeightInfo>& held = manifest.modules[holder.module].held;
      for (size_t w = 0; w < held.size(); ++w)
        if (held[w].name == holder.name && on_disk[holder.module][w]) return true;
    }
    return false;
  });
  if (all_copies.empty()) return;
  std::string mine;
  for (const Copies& copies : all_copies)
    for (const SharedWeight::Holder& holder : copies.holders) {
      at::Tensor copy = stages.Weight(holder.module, holder.name);
      mine += copy.defined() ? HexHash(HostBytes(OnHost(copy))) : std::string(16, ' ');
    }
  std::vector<std::string> all = transport.AllGather(mine);
  size_t at = 0;
  for (const Copies& copies : all_copies) {
    std::string first, where;
    for (const SharedWeight::Holder& holder : copies.holders) {
      for (int rank : conf.stage_to_ranks[conf.module_to_stage[holder.module]]) {
        std::string hash = all[rank].substr(at, 16);
        std::string here =
            "module " + std::to_string(holder.module) + " on rank " + std::to_string(rank);
        if (first.empty()) first = hash, where = here;
        if (hash != first)
          throw Error(copies.name, "the copy of " + here + " differs from that of " + where);
      }
      at += 16;
    }
  }
}

}  // namespace pipewright
