#include "runtime/offload.h"

#include <ATen/ATen.h>

#include <algorithm>

#include "plan/error.h"
#include "plan/json.h"
#include "plan/weights/checkpoint.h"
#include "runtime/module_weights.h"
#include "runtime/weights.h"
#include "tensors/dtype.h"

namespace pipewright {

namespace {

WeightPiece PieceOfPackage(const SafetensorsFile& file, const WeightInfo& weight) {
  const TensorInfo& info = CheckedWeight(file, weight);
  return {file.path(), file.header().data_begin + info.begin, info.end - info.begin};
}

WeightPiece PieceOfCheckpoint(const Checkpoint& checkpoint, const Manifest& manifest,
                              const WeightInfo& weight) {
  const StoredTensor& from = StoredWeight(checkpoint, manifest, weight);
  if (!from.strides.empty())
    throw Error(checkpoint.path,
                Quote(from.name) + " is not contiguous and cannot be read as it is",
                "make a file of it: pipewright weights convert --force-contiguous");
  return {checkpoint.files[static_cast<size_t>(from.file)]->path(), from.offset, from.bytes};
}

}  // namespace

OffloadedWeights::OffloadedWeights(const std::string& package, const std::string& weights,
                                   const Manifest& manifest, const Conf& conf,
                                   const std::vector<std::vector<bool>>& on_disk,
                                   const std::vector<std::vector<Action>>& lists,
                                   std::map<int, LoadedModule>& modules)
    : manifest_(manifest), modules_(modules) {
  Checkpoint checkpoint;
  if (!weights.empty()) checkpoint = OpenCheckpoint(weights);
  std::map<int, std::vector<WeightPiece>> pieces;
  for (const std::vector<Action>& actions : lists)
    for (const Action& action : actions)
      if (action.kind == ActionKind::kLoad) pieces[action.stage], stages_[action.stage];
  for (const auto& [index, module] : modules) {
    const ModuleInfo& info = manifest.modules[index];
    const std::vector<bool>& from_disk = on_disk[index];
    if (std::find(from_disk.begin(), from_disk.end(), true) == from_disk.end()) continue;
    const int stage = conf.module_to_stage[index];
    const SafetensorsFile file(package + "/" + info.weights);
    std::vector<WeightPiece>& of = pieces[stage];
    for (size_t w = 0; w < info.held.size(); ++w) {
      if (!from_disk[w]) continue;
      const bool own =
          weights.empty() || info.held[w].kind == "constant" || !info.held[w].persistent;
      WeightPiece piece = own ? PieceOfPackage(file, info.held[w])
                              : PieceOfCheckpoint(checkpoint, manifest, info.held[w]);
      bytes_ += piece.bytes;
      stages_[stage].places.push_back({index, w});
      pieces_[{index, w}] = piece;
      if (auto& opened = files_[piece.file]; !opened)
        opened = std::make_unique<MappedFile>(piece.file);
      of.push_back(std::move(piece));
    }
  }
  stream_ = std::make_unique<WeightStream>(lists, pieces);
}

void OffloadedWeights::Load(int stage) { stream_->Load(stage); }

void OffloadedWeights::Bind(int stage) {
  auto found = stages_.find(stage);
  if (found == stages_.end() || found->second.bound) return;
  const std::vector<char*>& data = stream_->Wait(stage);
  for (size_t i = 0; i < data.size(); ++i) {
    const auto [index, w] = found->second.places[i];
    const WeightInfo& info = manifest_.modules[index].held[w];
    LoadedModule& module = modules_.at(index);
    auto changed = changed_.find({index, w});
    module.weights[w] = changed != changed_.end()
                            ? changed->second
                            : at::from_blob(data[i], info.shape, at::dtype(DtypeOf(info.dtype)));
    module.self->setAttr(info.name, module.weights[w]);
  }
  found->second.bound = true;
}

void OffloadedWeights::Evict(int stage) {
  auto found = stages_.find(stage);
  if (found != stages_.end() && found->second.bound) {
    for (const auto& [index, w] : found->second.places) {
      const WeightInfo& info = manifest_.modules[index].held[w];
      LoadedModule& module = modules_.at(index);
      at::Tensor& weight = module.weights[w];
      if (weight._version() != 0 && !changed_.count({index, w}))
        changed_[{index, w}] = weight.clone();
      weight = at::empty({0}, weight.options());
      module.self->setAttr(info.name, weight);
    }
    found->second.bound = false;
  }
  stream_->Evict(stage);
}

bool OffloadedWeights::OnDisk(int module, size_t weight) const {
  return pieces_.count({module, weight}) > 0 && changed_.count({module, weight}) == 0;
}

void OffloadedWeights::Read(int module, size_t weight, const ByteSink& sink) const {
  const WeightPiece& piece = pieces_.at({module, weight});
  const MappedFile& file = *files_.at(piece.file);
  std::string buffer;
  for (uint64_t at = 0; at < piece.bytes; at += buffer.size()) {
    buffer.resize(std::min<uint64_t>(piece.bytes - at, 1 << 20));
    file.Read(piece.offset + at, buffer.data(), buffer.size());
    sink(buffer);
  }
}

at::Tensor OffloadedWeights::Detached(int stage, const at::Tensor& value) const {
  return value.has_storage() && stream_->Holds(stage, value.storage().data()) ? value.clone()
                                                                              : value;
}

}  // namespace pipewright
