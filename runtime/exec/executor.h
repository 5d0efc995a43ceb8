// Executes one rank's list of a plan over a transport. Knows order, buffers and messages; what is
// computed stands behind StageBody, so that the same code runs in tests without torch.
#pragma once
#include <memory>
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

class Executor {
 public:
  // `plan`, `graph`, `groups`, `body` and `transport` must outlive the executor.
  Executor(const Plan& plan, const StageGraph& graph, const std::vector<SharedGroup>& groups,
           StageBody& body, Transport& transport);
  ~Executor();

  // Runs this rank's list once: one optimizer step, or one forward sweep. What the body or the
  // transport throws leaves as Error("rank R, stage S, microbatch M, action 2F5", ...).
  void RunStep();

  // Events of the last step, in order.
  const std::vector<TraceEvent>& trace() const;

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace pipewright
