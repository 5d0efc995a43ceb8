// Presents the weights of offloaded stages as tensors, which lie in a stream's buffers, or in their
// copies on a device, while their stage is loaded and have no memory otherwise.
#pragma once
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "formats/manifest.h"
#include "formats/weights/safetensors.h"
#include "plan/plan.h"
#include "runtime/disk/weight_stream.h"
#include "runtime/module/module.h"
#include "runtime/stage/stage.h"
#include "runtime/stage/weight_copies.h"

namespace pipewright {

class OffloadedWeights {
 public:
  // `modules` are those of this rank, loaded without the weights that the run has on disk; they
  // must not move. `ids` are as in TensorIds; a tensor that several stages use stays loaded from
  // the first LOAD of one of them in a list to the last EVICT. `lists` are as in WeightStream.
  // Throws Error if a file is missing or does not match the manifest.
  OffloadedWeights(const StageSettings& settings, const std::vector<std::vector<int>>& ids,
                   const std::vector<std::vector<Action>>& lists,
                   std::map<int, LoadedModule>& modules);

  void ReportTo(StatusFile& status) { stream_->ReportTo(status); }
  // Says which transport moves the values of plans; at first that of the settings. While a copy to
  // a device is awaited, it makes progress.
  void ReceiveOver(Transport& values) { values_ = &values; }
  void Follow(size_t list);
  bool Offloads(int stage) const { return stages_.count(stage) > 0; }
  void Load(int stage);  // starts reading
  // Waits for the weights of a loaded stage and puts them into its modules. Does nothing for other
  // stages. For a device, it waits until they have been read, and not until they are copied; but a
  // buffer is read into only when the copy of its previous stage is done.
  void Bind(int stage);
  // Takes the weights out of the modules. A buffer that the code has changed stays in memory from
  // then on, because its file is outdated.
  void Evict(int stage);
  // Returns `value`, copied if it shares memory with the stage's weights, which are evicted before
  // it.
  at::Tensor Detached(int stage, const at::Tensor& value) const;

  // Returns true if a weight is only on disk, that is, if the code has not changed it.
  bool OnDisk(int module, size_t weight) const;
  // Passes the bytes of such a weight to `sink`, at most 1 MiB at a time. Thread-safe. Throws
  // Error.
  void Read(int module, size_t weight, const ByteSink& sink) const;

  uint64_t bytes() const { return bytes_; }  // per pass
  const WeightStream& stream() const { return *stream_; }

 private:
  // In the stream, a tensor that several stages use is a separate stage, numbered after the others.
  struct Place {
    int module = -1;
    size_t weight = 0;
    int tensor = -1;   // as in TensorIds
    int unit = -1;     // stage of the stream that holds it
    size_t piece = 0;  // its index there
  };
  struct Stage {
    std::vector<Place> places;
    bool bound = false;
  };
  void Next(ActionKind kind, int stage);
  void Do(const Action& action);
  void Advance();
  void AdvanceUntil(const std::function<bool()>& done);
  bool IsWaiting(int unit) const;
  at::Tensor WeightOf(const Place& place, const WeightInfo& info);
  const Manifest& manifest_;
  std::map<int, LoadedModule>& modules_;
  std::map<int, Stage> stages_;
  std::map<int, at::Tensor> changed_;  // by tensor
  // By (module, weight): its tensor and location.
  std::map<std::pair<int, size_t>, std::pair<int, WeightPiece>> pieces_;
  int stage_count_ = 0;                      // in the conf
  std::vector<std::vector<Action>> orders_;  // by list: the stream's LOADs and EVICTs
  size_t list_ = 0, next_ = 0;
  std::map<std::string, std::unique_ptr<MappedFile>> files_;
  Transport* values_;  // see ReceiveOver
  const at::Device device_;
  std::unique_ptr<WeightCopies> copies_;  // null: the rank computes on the CPU
  std::unique_ptr<WeightStream> stream_;
  std::deque<Action> waiting_;    // not issued yet, because a buffer is being copied
  std::map<int, size_t> copied_;  // by stage of the stream: its buffer
  uint64_t bytes_ = 0;
};

}  // namespace pipewright
