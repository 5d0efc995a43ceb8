// Measures the memory that one microbatch takes on a rank.
#pragma once
#include <map>
#include <set>
#include <string>
#include <vector>

#include "runtime/exec/executor.h"
#include "runtime/measure/memory_meter.h"

namespace pipewright {

// Bytes of tensors, including messages. A peak is the most that an action's microbatch takes while
// the action runs; that of `step` is in addition to what the rank holds. The first B or W of a step
// also makes the gradient sums; with one microbatch, B and W equal first_B and first_W.
struct StageBytes {
  struct Peak {
    int64_t F = 0, I = 0, B = 0, W = 0, first_B = 0, first_W = 0, step = 0, forward_only = 0;
  };
  int64_t activation = 0, received = 0;  // held from F to B; of this, received
  int64_t kept_for_W = 0;                // from I to W
  int64_t gradients = 0;                 // weights' gradients, until the step
  Peak peak;
};

// Forwards every call to `body`, whose tensors must be allocated on this thread, under `meter`. The
// figures of a stage are those of its last microbatch; they are of a single microbatch if the plan
// runs each B (or I and W) right after its F.
class MeteredStages : public StageBody {
 public:
  MeteredStages(StageBody& body, MemoryMeter& meter);

  const std::map<int, StageBytes>& bytes() const { return bytes_; }
  // Returns the most that the rank has held since construction.
  int64_t peak();

  Bundle Allocate(int edge, int microbatch, bool backward, int slot, bool on_device) override;
  Bundle OnHost(Bundle message) override;
  int64_t MessageBytes(int edge, int microbatch, bool backward) override;
  std::vector<Bundle> Forward(int stage, int microbatch, std::vector<Bundle> inputs) override;
  std::vector<Bundle> Backward(ActionKind kind, int stage, int microbatch,
                               std::vector<Bundle> gradients) override;
  Bundle Gradient(int group, int holder) override;
  Bundle Scratch(int group) override;
  void Add(const Bundle& into, const Bundle& from) override;
  void Copy(const Bundle& into, const Bundle& from) override;
  void OnReady(std::function<void(int group)> ready) override;
  std::shared_ptr<void> Exchanging(bool begins) override { return body_.Exchanging(begins); }
  void EndExchanges() override { body_.EndExchanges(); }
  bool AllReduces(int group) override { return body_.AllReduces(group); }
  void Step(int stage) override;
  int Mark() override { return body_.Mark(); }
  int Reached() override { return body_.Reached(); }
  double Moment(int mark) override { return body_.Moment(mark); }
  void UseVersion(int stage, int version) override;
  void Load(int stage) override;
  void Evict(int stage) override;

 private:
  StageBody& body_;
  MemoryMeter& meter_;
  std::map<int, StageBytes> bytes_;
  std::set<int> summed_;  // stages whose sums of gradients have been made
  int64_t peak_ = 0;

  void Begin();
};

}  // namespace pipewright
