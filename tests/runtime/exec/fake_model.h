// A model made of arithmetic: every value and gradient is a number that depends on everything that
// went into it, and on the order where order matters. The results of a pipeline are compared with
// those of a single loop.
#pragma once
#include <atomic>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "runtime/exec/executor.h"

namespace pipewright {

// One run: the stages, their shared weights, and the actions of the ranks.
struct FakeCase {
  StageGraph graph;
  std::vector<SharedGroup> groups;
  Plan plan;
  int steps = 1;             // calls of RunStep
  int64_t first_step = 0;    // number of the first
  size_t message_words = 0;  // length of messages; 0: small and different for each
  bool offloads = false;     // true: stages can be loaded and evicted
  bool any_order = false;    // true: sums of gradients do not depend on the order
  ExecutorOptions options;
};

// The final weights: of each stage, and of each holder of each group.
struct FakeWeights {
  std::vector<uint64_t> stages;
  std::vector<std::vector<uint64_t>> shared;  // [group][holder]
};

// Returns the result of the case, computed without ranks, messages or a plan.
FakeWeights RunReference(const FakeCase& c);

class FakeBody : public StageBody {
 public:
  // `hook` is called at the beginning of each call with its name, stage and microbatch.
  using Hook = std::function<void(const std::string& call, int stage, int microbatch)>;
  FakeBody(const FakeCase& c, int rank, Hook hook = nullptr);

  Bundle Allocate(int edge, int microbatch, bool backward, int slot, bool on_device) override;
  std::vector<Bundle> Forward(int stage, int microbatch, std::vector<Bundle> inputs) override;
  std::vector<Bundle> Backward(ActionKind kind, int stage, int microbatch,
                               std::vector<Bundle> gradients) override;
  Bundle Gradient(int group, int holder) override;
  Bundle Scratch(int group) override;
  void Add(const Bundle& into, const Bundle& from) override;
  void Copy(const Bundle& into, const Bundle& from) override;
  void OnReady(std::function<void(int group)> ready) override { ready_ = std::move(ready); }
  void Step(int stage) override;
  void Load(int stage) override;
  void Evict(int stage) override;

  const FakeWeights& weights() const { return weights_; }  // only this rank's are up to date
  int live_bundles() const { return *live_; }
  // By edge, direction and slot: the last message that was received there.
  const std::map<std::tuple<int, bool, int>, std::weak_ptr<void>>& slots() const { return slots_; }
  std::function<std::shared_ptr<void>(size_t)> memory;  // allocates receive buffers; may be empty
  int64_t words_off_by_one = 0;  // added to the size in Allocate, to provoke an error

 private:
  Bundle Make(size_t words, bool received = false);
  void Announce(int stage);
  Bundle Message(int edge, int microbatch, bool backward, uint64_t value);
  uint64_t Read(const Bundle& bundle, int edge, int microbatch, bool backward) const;

  const FakeCase& case_;
  const int rank_;
  const Hook hook_;
  FakeWeights weights_;
  std::vector<uint64_t> sums_;  // gradient by stage
  std::vector<int> done_;       // backwards of a step, by stage
  std::function<void(int)> ready_;
  std::vector<std::vector<Bundle>> shared_sums_;                   // [group][holder]
  std::map<std::pair<int, int>, uint64_t> kept_, kept_gradients_;  // by stage and microbatch
  std::shared_ptr<std::atomic<int>> live_;
  std::map<std::tuple<int, bool, int>, std::weak_ptr<void>> slots_;
};

// Runs the case on one rank and compares with the reference: EXPECTs that everything that this rank
// holds agrees, that no buffer remains, and that the trace has every action.
// `around`: makes the body that the executor calls, if it is not the given one.
using BodyAround = std::function<std::unique_ptr<StageBody>(StageBody&)>;
void RunAndCompare(const FakeCase& c, Transport& transport, FakeBody::Hook hook = nullptr,
                   const BodyAround& around = nullptr);

// --- cases ---

// Returns stages in a row with a skip over every second one and a fan-out from the first.
StageGraph SkipGraph(std::vector<std::vector<int>> ranks_of);

// Returns a random case: any graph of up to 8 stages on up to `ranks` ranks, including replicas and
// shared weights, with its actions in any order that can run.
FakeCase RandomCase(unsigned seed, int ranks);

// Returns a named schedule, lowered for `graph`, with the groups from graph.shared and the
// replicas.
FakeCase ScheduleCase(const std::string& schedule, const StageGraph& graph, int microbatches,
                      int plan_steps = 1);

// Returns a case of three ranks with every kind of action.
FakeCase EveryKindCase();

}  // namespace pipewright
