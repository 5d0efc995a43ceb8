#include "runtime/measure/metered_stages.h"

#include <ATen/core/Tensor.h>

#include <algorithm>
#include <utility>

#include "runtime/module/messages.h"

namespace pipewright {

namespace {

// Tracks memory of messages that nothing else uses, without keeping it alive.
class OwnMemory {
 public:
  explicit OwnMemory(const std::vector<Bundle>& messages) {
    // Several messages may have the same tensor, and several tensors the same memory.
    std::map<const at::TensorImpl*, size_t> uses;
    std::map<const c10::StorageImpl*, std::vector<at::Tensor>> places;
    for (const Bundle& message : messages)
      for (const at::Tensor& tensor : TensorsOf(message))
        if (++uses[tensor.unsafeGetTensorImpl()] == 1)
          places[tensor.storage().unsafeGetStorageImpl()].push_back(tensor);
    for (const auto& [place, tensors] : places) {
      const at::Storage& storage = tensors[0].storage();
      const bool alone = std::all_of(tensors.begin(), tensors.end(), [&](const at::Tensor& t) {
        return t.use_count() == uses[t.unsafeGetTensorImpl()] + 1;
      });
      if (alone && storage.use_count() == tensors.size())
        places_.emplace_back(storage.getWeakStorageImpl(), static_cast<int64_t>(storage.nbytes()));
    }
  }
  int64_t bytes() const {
    int64_t bytes = 0;
    for (const auto& [place, size] : places_) bytes += size;
    return bytes;
  }
  // Returns the bytes that are still in use after the messages are gone.
  int64_t StillHeld() const {
    int64_t bytes = 0;
    for (const auto& [place, size] : places_) bytes += place.expired() ? 0 : size;
    return bytes;
  }

 private:
  std::vector<std::pair<c10::weak_intrusive_ptr<c10::StorageImpl>, int64_t>> places_;
};

}  // namespace

MeteredStages::MeteredStages(StageBody& body, MemoryMeter& meter) : body_(body), meter_(meter) {
  meter_.ResetPeak();
}

int64_t MeteredStages::peak() { return peak_ = std::max(peak_, meter_.peak()); }

void MeteredStages::Begin() {
  peak();
  meter_.ResetPeak();
}

std::vector<Bundle> MeteredStages::Forward(int stage, int microbatch, std::vector<Bundle> inputs) {
  Begin();
  StageBytes& bytes = bytes_[stage];
  const OwnMemory received(inputs);
  const int64_t before = meter_.live() - received.bytes();
  std::vector<Bundle> outputs = body_.Forward(stage, microbatch, std::move(inputs));
  inputs.clear();
  bytes.peak.F = meter_.peak() - before;
  bytes.received = received.StillHeld();
  bytes.activation = meter_.live() - OwnMemory(outputs).bytes() - before;
  return outputs;
}

std::vector<Bundle> MeteredStages::Backward(ActionKind kind, int stage, int microbatch,
                                            std::vector<Bundle> gradients) {
  Begin();
  StageBytes& bytes = bytes_[stage];
  const bool weights = kind == ActionKind::kWeightGrad, inputs = kind == ActionKind::kInputGrad;
  const int64_t before = meter_.live() - OwnMemory(gradients).bytes() -
                         (weights ? bytes.kept_for_W : bytes.activation);
  std::vector<Bundle> results = body_.Backward(kind, stage, microbatch, std::move(gradients));
  gradients.clear();
  const int64_t peak = meter_.peak() - before;
  (weights ? bytes.peak.W : inputs ? bytes.peak.I : bytes.peak.B) = peak;
  if (!inputs && summed_.insert(stage).second)
    (weights ? bytes.peak.first_W : bytes.peak.first_B) = peak;
  const int64_t left = meter_.live() - OwnMemory(results).bytes() - before;
  if (inputs)
    bytes.kept_for_W = left;
  else
    bytes.gradients = std::max(bytes.gradients, left);
  return results;
}

void MeteredStages::Step(int stage) {
  Begin();
  const int64_t before = meter_.live();
  body_.Step(stage);
  bytes_[stage].peak.step = meter_.peak() - before;
}

Bundle MeteredStages::Allocate(int edge, int microbatch, bool backward, int slot, bool on_device) {
  return body_.Allocate(edge, microbatch, backward, slot, on_device);
}
Bundle MeteredStages::OnHost(Bundle message) { return body_.OnHost(std::move(message)); }
int64_t MeteredStages::MessageBytes(int edge, int microbatch, bool backward) {
  return body_.MessageBytes(edge, microbatch, backward);
}
Bundle MeteredStages::Gradient(int group, int holder) { return body_.Gradient(group, holder); }
Bundle MeteredStages::Scratch(int group) { return body_.Scratch(group); }
void MeteredStages::Add(const Bundle& into, const Bundle& from) { body_.Add(into, from); }
void MeteredStages::Copy(const Bundle& into, const Bundle& from) { body_.Copy(into, from); }
void MeteredStages::OnReady(std::function<void(int)> ready) { body_.OnReady(std::move(ready)); }
void MeteredStages::UseVersion(int stage, int version) { body_.UseVersion(stage, version); }
void MeteredStages::Load(int stage) { body_.Load(stage); }
void MeteredStages::Evict(int stage) { body_.Evict(stage); }

}  // namespace pipewright
