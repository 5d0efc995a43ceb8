// Executes one rank's list of a plan over a transport. Knows order, buffers and messages; what is
// computed stands behind StageBody, so that the same code runs in tests without torch.
#pragma once
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "plan/plan.h"
#include "runtime/exec/transport.h"

namespace pipewright {

// What a rank computes: all stages that it holds.
class StageBody {
 public:
  virtual ~StageBody() = default;

  // Memory for one message along StageGraph::edges[edge], forward or backward.
  virtual Bundle Allocate(int edge, int microbatch, bool backward) = 0;

  // The size of that message, for the sender to compare with what it has made; -1: not known.
  // MPI does not tell reliably when a message is longer than its receiver expects.
  virtual int64_t MessageBytes(int edge, int microbatch, bool backward);

  // `inputs`: one bundle for each incoming edge of `stage`, in the order of StageGraph::edges.
  // Returns one for each outgoing edge. Inputs of the model itself are the body's own affair.
  virtual std::vector<Bundle> Forward(int stage, int microbatch, std::vector<Bundle> inputs) = 0;

  // kind: kBackward, kInputGrad or kWeightGrad. `gradients`: one bundle for each outgoing edge that
  // carries gradients (none for kWeightGrad); returns one for each such incoming edge (none for
  // kWeightGrad).
  virtual std::vector<Bundle> Backward(ActionKind kind, int stage, int microbatch,
                                       std::vector<Bundle> gradients) = 0;

  // Shared weights. The accumulated gradient of holder `holder` of group `group`, in place.
  virtual Bundle Gradient(int group, int holder) = 0;
  virtual Bundle Scratch(int group) = 0;                         // same size, fresh
  virtual void Add(const Bundle& into, const Bundle& from) = 0;  // into += from
  virtual void Copy(const Bundle& into, const Bundle& from) = 0;

  virtual void Step(int stage) = 0;  // optimizer step of one stage

  // Weights of an offloaded stage. By default an error: most bodies keep all their weights.
  virtual void Load(int stage);
  virtual void Evict(int stage);
};

// One holder of a shared weight: a module of `stage`, on `rank`.
struct SharedHolder {
  int stage = -1;
  int rank = -1;
};
// Holders in module order: the order in which their gradients are added.
using SharedGroup = std::vector<SharedHolder>;

struct TraceEvent {
  Action action;
  double start = 0, end = 0;  // seconds on the steady clock
  double waited = 0;          // of which: waiting for messages
};

struct ExecutorOptions {
  // What the first RunStep is called in Transport::status: a resumed run goes on counting.
  int64_t first_step = 0;
  // Every message is preceded by one that says what it is (plan, edge, microbatch, bytes); the
  // receiver compares, and only then receives the message. The same on all ranks.
#ifdef NDEBUG
  bool check_messages = false;
#else
  bool check_messages = true;
#endif
};

// Leaves the last two tags of the transport to its caller.
class Executor {
 public:
  // `plan`, `graph`, `groups`, `body` and `transport` must outlive the executor. Throws Error where
  // this rank's list does not fit the graph (a transfer along no edge, a stage of another rank, a
  // step of a shared weight without REDUCE_GRAD).
  Executor(const Plan& plan, const StageGraph& graph, const std::vector<SharedGroup>& groups,
           StageBody& body, Transport& transport, const ExecutorOptions& options = {});
  ~Executor();

  // Runs this rank's list once: one optimizer step, or one forward sweep. What the body or the
  // transport throws leaves as Error("rank R, stage S, microbatch M, action 2F5", ...); Aborted,
  // when another rank has failed, passes as it is. Returns without waiting for the other ranks:
  // messages of this step, and of the next, may still be under way.
  //
  // Shared weights are summed at the last REDUCE_GRAD of the list, all groups of the rank together.
  // A stage's STEP first waits until the values that it sent forward have left.
  //
  // Of a list that is run several times before its weights change, all but the last time with
  // `last` false: REDUCE_GRAD and STEP are left out, and gradients go on adding up.
  void RunStep(bool last = true);

  // Events of the last step, in order.
  const std::vector<TraceEvent>& trace() const;

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace pipewright
