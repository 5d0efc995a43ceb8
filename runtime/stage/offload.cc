#include "runtime/stage/offload.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <set>

#include "base/error.h"
#include "base/files/missing_file.h"
#include "base/json.h"
#include "formats/weights/checkpoint.h"
#include "runtime/module/messages.h"
#include "runtime/module/module_weights.h"
#include "runtime/module/stored_weights.h"
#include "tensors/device_memory.h"
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

// Throws Error if two modules' files have other values of one weight, of which only the first piece
// is read in a run.
void CheckSamePiece(const WeightPiece& first, const MappedFile& first_file,
                    const WeightPiece& other, const MappedFile& other_file,
                    const std::string& name) {
  if (first.file == other.file && first.offset == other.offset) return;
  constexpr uint64_t kPart = uint64_t{1} << 20;
  std::string a, b;
  for (uint64_t at = 0; at < first.bytes; at += kPart) {
    a.resize(std::min(kPart, first.bytes - at));
    b.resize(a.size());
    first_file.Read(first.offset + at, a.data(), a.size());
    other_file.Read(other.offset + at, b.data(), b.size());
    if (a != b) throw CopiesDiffer(other.file, name);
  }
}

// Returns the LOADs and EVICTs of a list, extended by those of tensors that several stages use.
std::vector<Action> OrderOf(const std::vector<Action>& actions,
                            const std::map<int, std::set<int>>& users) {
  std::vector<Action> moves;
  for (const Action& action : actions)
    if (action.kind == ActionKind::kLoad || action.kind == ActionKind::kEvict)
      moves.push_back(action);
  std::map<size_t, std::vector<Action>> before, after;  // by move
  for (const auto& [unit, stages] : users) {
    size_t first = moves.size(), last = 0;
    for (size_t i = 0; i < moves.size(); ++i) {
      if (!stages.count(moves[i].stage)) continue;
      if (moves[i].kind == ActionKind::kLoad) first = std::min(first, i);
      if (moves[i].kind == ActionKind::kEvict) last = i;
    }
    if (first == moves.size()) continue;
    Action action;
    action.stage = unit;
    action.kind = ActionKind::kLoad;
    before[first].push_back(action);
    action.kind = ActionKind::kEvict;
    after[last].push_back(action);
  }
  std::vector<Action> order;
  for (size_t i = 0; i < moves.size(); ++i) {
    order.insert(order.end(), before[i].begin(), before[i].end());
    order.push_back(moves[i]);
    order.insert(order.end(), after[i].begin(), after[i].end());
  }
  return order;
}

}  // namespace

OffloadedWeights::OffloadedWeights(const StageSettings& settings,
                                   const std::vector<std::vector<int>>& ids,
                                   const std::vector<std::vector<Action>>& lists,
                                   std::map<int, LoadedModule>& modules)
    : manifest_(settings.run.manifest),
      modules_(modules),
      stage_count_(static_cast<int>(settings.run.conf.stage_to_ranks.size())),
      values_(&settings.transport),
      device_(settings.device) {
  const std::string &package = settings.options.package, &weights = settings.options.weights;
  const Conf& conf = settings.run.conf;
  const std::vector<std::vector<bool>>& on_disk = settings.run.on_disk;
  Checkpoint checkpoint;
  if (!weights.empty()) checkpoint = OpenCheckpoint(weights);
  std::map<int, std::vector<WeightPiece>> pieces;  // by stage of the stream
  for (const std::vector<Action>& actions : lists)
    for (const Action& action : actions)
      if (action.kind == ActionKind::kLoad) pieces[action.stage], stages_[action.stage];
  std::map<int, std::set<int>> stages_of;  // tensor -> stages
  for (const auto& [index, module] : modules)
    for (size_t w = 0; w < on_disk[index].size(); ++w)
      if (on_disk[index][w]) stages_of[ids[index][w]].insert(conf.module_to_stage[index]);
  std::map<int, int> units;                        // tensor -> stage of the stream
  std::map<int, std::set<int>> users;              // stage of the stream -> stages
  std::map<std::pair<int, int>, size_t> piece_of;  // (stage of the stream, tensor)
  for (const auto& [tensor, stages] : stages_of) {
    units[tensor] = *stages.begin();
    if (stages.size() < 2) continue;
    units[tensor] = stage_count_ + static_cast<int>(users.size());
    users[units[tensor]] = stages;
  }
  for (const auto& [index, module] : modules) {
    const ModuleInfo& info = manifest_.modules[index];
    const std::vector<bool>& from_disk = on_disk[index];
    if (std::find(from_disk.begin(), from_disk.end(), true) == from_disk.end()) continue;
    const SafetensorsFile file(PackageFile(package, info.weights));
    for (size_t w = 0; w < info.held.size(); ++w) {
      if (!from_disk[w]) continue;
      const bool own =
          weights.empty() || info.held[w].kind == WeightKind::kConstant || !info.held[w].persistent;
      WeightPiece piece = own ? PieceOfPackage(file, info.held[w])
                              : PieceOfCheckpoint(checkpoint, manifest_, info.held[w]);
      Place place{index, w, ids[index][w], units.at(ids[index][w])};
      std::vector<WeightPiece>& of = pieces[place.unit];
      const auto [found, is_new] = piece_of.emplace(std::pair(place.unit, place.tensor), of.size());
      place.piece = found->second;
      stages_[conf.module_to_stage[index]].places.push_back(place);
      pieces_[{index, w}] = {place.tensor, piece};
      if (auto& opened = files_[piece.file]; !opened)
        opened = std::make_unique<MappedFile>(piece.file);
      if (!is_new) {
        const WeightPiece& first = of[found->second];
        CheckSamePiece(first, *files_.at(first.file), piece, *files_.at(piece.file),
                       info.held[w].name);
        continue;
      }
      bytes_ += piece.bytes;
      of.push_back(std::move(piece));
    }
  }
  for (const std::vector<Action>& actions : lists) orders_.push_back(OrderOf(actions, users));
  BufferMemory memory;
  if (!device_.is_cpu()) {
    copies_ = std::make_unique<WeightCopies>(device_);
    memory = [this](uint64_t bytes) { return copies_->Allocate(bytes); };
  }
  stream_ = std::make_unique<WeightStream>(orders_, pieces, memory);
}

void OffloadedWeights::Follow(size_t list) {
  AdvanceUntil([&] { return waiting_.empty(); });
  stream_->Follow(list);
  list_ = list, next_ = 0;
}

void OffloadedWeights::Do(const Action& action) {
  const auto copied = copied_.find(action.stage);
  if (action.kind == ActionKind::kEvict && copied != copied_.end())
    copies_->Release(copied->second);
  waiting_.push_back(action);
  Advance();
}

// Issues the LOADs and EVICTs up to one that has to wait for a copy.
void OffloadedWeights::Advance() {
  for (; !waiting_.empty(); waiting_.pop_front()) {
    const Action& action = waiting_.front();
    if (action.kind == ActionKind::kLoad) {
      stream_->Load(action.stage);
      continue;
    }
    if (const auto copied = copied_.find(action.stage); copied != copied_.end()) {
      if (!copies_->Copied(copied->second)) return;
      copied_.erase(copied);
    }
    stream_->Evict(action.stage);
  }
}

void OffloadedWeights::AdvanceUntil(const std::function<bool()>& done) {
  values_->WaitUntil(
      [&]() -> Awaited {
        Advance();
        if (done()) return {};
        return {.kind = Awaited::kDevice, .microbatch = copies_->count()};
      },
      std::chrono::microseconds(20));
}

// Returns true if the unit's LOAD has not been issued yet.
bool OffloadedWeights::IsWaiting(int unit) const {
  return std::any_of(waiting_.begin(), waiting_.end(), [&](const Action& action) {
    return action.kind == ActionKind::kLoad && action.stage == unit;
  });
}

// Returns a weight that is on disk, once it has been read. The stage that uses it is not waiting,
// so neither is its unit, whose LOAD comes first.
at::Tensor OffloadedWeights::WeightOf(const Place& place, const WeightInfo& info) {
  char* const data = stream_->Wait(place.unit)[place.piece];
  const at::ScalarType type = DtypeOf(info.dtype);
  if (!copies_) return at::from_blob(data, info.shape, at::dtype(type));
  const auto [copied, is_new] = copied_.emplace(place.unit, stream_->BufferOf(place.unit));
  if (is_new) copies_->Copy(copied->second, stream_->BytesOf(place.unit));
  return copies_->Tensor(copied->second, data, info.shape, type);
}

// Issues the LOADs and EVICTs up to and including the stage's.
void OffloadedWeights::Next(ActionKind kind, int stage) {
  const std::vector<Action>& order = orders_.at(list_);
  for (bool done = false; !done || (next_ < order.size() && order[next_].stage >= stage_count_ &&
                                    order[next_].kind == ActionKind::kEvict);) {
    if (next_ == order.size()) next_ = 0;
    const Action& action = order.at(next_++);
    done = done || (action.kind == kind && action.stage == stage);
    if (!done && action.stage < stage_count_)
      throw Error("stage " + std::to_string(stage),
                  "its weights are loaded or released out of order");
    Do(action);
  }
}

void OffloadedWeights::Load(int stage) { Next(ActionKind::kLoad, stage); }

void OffloadedWeights::Bind(int stage) {
  auto found = stages_.find(stage);
  if (found == stages_.end() || found->second.bound) return;
  AdvanceUntil([&] { return !IsWaiting(stage); });
  stream_->Wait(stage);
  for (const Place& place : found->second.places) {
    const WeightInfo& info = manifest_.modules[place.module].held[place.weight];
    LoadedModule& module = modules_.at(place.module);
    auto changed = changed_.find(place.tensor);
    at::Tensor& weight = module.weights[place.weight];
    weight = changed != changed_.end() ? changed->second : WeightOf(place, info);
    module.self->setAttr(info.name, weight);
  }
  found->second.bound = true;
}

void OffloadedWeights::Evict(int stage) {
  auto found = stages_.find(stage);
  if (found != stages_.end() && found->second.bound) {
    for (const Place& place : found->second.places) {
      const WeightInfo& info = manifest_.modules[place.module].held[place.weight];
      LoadedModule& module = modules_.at(place.module);
      at::Tensor& weight = module.weights[place.weight];
      if (weight._version() != 0 && !changed_.count(place.tensor))
        changed_[place.tensor] = weight.clone();
      weight = at::empty({0}, weight.options());
      module.self->setAttr(info.name, weight);
    }
    found->second.bound = false;
  }
  Next(ActionKind::kEvict, stage);
}

bool OffloadedWeights::OnDisk(int module, size_t weight) const {
  const auto piece = pieces_.find({module, weight});
  return piece != pieces_.end() && changed_.count(piece->second.first) == 0;
}

void OffloadedWeights::Read(int module, size_t weight, const ByteSink& sink) const {
  const WeightPiece& piece = pieces_.at({module, weight}).second;
  const MappedFile& file = *files_.at(piece.file);
  std::string buffer;
  for (uint64_t at = 0; at < piece.bytes; at += buffer.size()) {
    buffer.resize(std::min<uint64_t>(piece.bytes - at, 1 << 20));
    file.Read(piece.offset + at, buffer.data(), buffer.size());
    sink(buffer);
  }
}

at::Tensor OffloadedWeights::Detached(int stage, const at::Tensor& value) const {
  if (!value.has_storage()) return value;
  auto holds = [&](int unit) {
    if (!copies_) return stream_->Holds(unit, value.storage().data());
    const auto copied = copied_.find(unit);
    return copied != copied_.end() && copies_->Holds(copied->second, value);
  };
  bool held = holds(stage);
  if (const auto found = stages_.find(stage); found != stages_.end())
    for (const Place& place : found->second.places) held = held || holds(place.unit);
  return held ? CopyAsItLies(value) : value;
}

}  // namespace pipewright
