// The weights of offloaded stages as tensors: in the buffers of a stream while their stage is
// loaded, nowhere otherwise.
#pragma once
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "plan/manifest.h"
#include "plan/plan.h"
#include "plan/safetensors.h"
#include "runtime/exec/weight_stream.h"
#include "runtime/module.h"

namespace pipewright {

class OffloadedWeights {
 public:
  // `modules`: of this rank, loaded without what `on_disk` says; they must stay where they are.
  // `ids`: as TensorIds; a tensor that several stages use is there from the first LOAD of one of
  // them in a list to the last EVICT. `weights`: a checkpoint that replaces the package's weights;
  // "": none. Throws Error for files that are missing or do not hold what the manifest says.
  // `lists`: as WeightStream's.
  OffloadedWeights(const std::string& package, const std::string& weights, const Manifest& manifest,
                   const Conf& conf, const std::vector<std::vector<bool>>& on_disk,
                   const std::vector<std::vector<int>>& ids,
                   const std::vector<std::vector<Action>>& lists,
                   std::map<int, LoadedModule>& modules);

  void Follow(size_t list);
  bool Offloads(int stage) const { return stages_.count(stage) > 0; }
  void Load(int stage);  // begins
  // Waits until the weights of a loaded stage are there and puts them into its modules. Other
  // stages are left alone.
  void Bind(int stage);
  // Takes them out again. A buffer that the code has changed stays in memory from then on, as its
  // file does not know.
  void Evict(int stage);
  // `value`, copied where it lies in the weights of the stage, which go away before it.
  at::Tensor Detached(int stage, const at::Tensor& value) const;

  // Whether a weight is on disk only: not one that the code has changed.
  bool OnDisk(int module, size_t weight) const;
  // Hands over the bytes of such a one, at most 1 MiB at a time; from any thread. Throws Error.
  void Read(int module, size_t weight, const ByteSink& sink) const;

  uint64_t bytes() const { return bytes_; }  // of a sweep
  const WeightStream& stream() const { return *stream_; }

 private:
  // To the stream, a tensor that several stages use is a stage of its own, numbered behind them.
  struct Place {
    int module = -1;
    size_t weight = 0;
    int tensor = -1;   // of TensorIds
    int unit = -1;     // the stream's stage that has it
    size_t piece = 0;  // of that one
  };
  struct Stage {
    std::vector<Place> places;
    bool bound = false;
  };
  void Next(ActionKind kind, int stage);
  void Do(const Action& action);
  const Manifest& manifest_;
  std::map<int, LoadedModule>& modules_;
  std::map<int, Stage> stages_;
  std::map<int, at::Tensor> changed_;  // by tensor
  // By (module, weight), with its tensor.
  std::map<std::pair<int, size_t>, std::pair<int, WeightPiece>> pieces_;
  int stage_count_ = 0;                      // of the conf
  std::vector<std::vector<Action>> orders_;  // by list: LOADs and EVICTs, as the stream does them
  size_t list_ = 0, next_ = 0;
  std::map<std::string, std::unique_ptr<MappedFile>> files_;
  std::unique_ptr<WeightStream> stream_;
  uint64_t bytes_ = 0;
};

}  // namespace pipewright
