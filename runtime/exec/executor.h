// Executes one rank's list of a plan over a transport. Knows order, buffers and messages; what is
// computed stands behind StageBody, so that the same code runs in tests without torch.
#pragma once
#include <cstdint>
#include <functional>
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

  // Gradients that are summed over ranks. What holder `holder` of group `group` gives, in place; of
  // one that gets the sum, where this goes.
  virtual Bundle Gradient(int group, int holder) = 0;
  virtual Bundle Scratch(int group) = 0;                         // same size, fresh
  virtual void Add(const Bundle& into, const Bundle& from) = 0;  // into += from
  virtual void Copy(const Bundle& into, const Bundle& from) = 0;

  // `ready(group)` may be called by Backward: all that this rank gives to the group is there until
  // the step. Its exchange then begins at once, behind the backward that remains. By default no
  // group is announced, and exchanges begin at REDUCE_GRAD.
  virtual void OnReady(std::function<void(int group)> ready);

  virtual void Step(int stage) = 0;  // optimizer step of one stage

  // Before a Forward or Backward whose plan names the version of the weights: that after so many
  // STEPs of this stage in the list. By default an error: one version is kept.
  virtual void UseVersion(int stage, int version);

  // Weights of an offloaded stage. By default an error: most bodies keep all their weights.
  virtual void Load(int stage);
  virtual void Evict(int stage);
};

// One part of a sum over ranks: a module that holds a shared weight, a replica's share of a
// gradient.
struct SharedHolder {
  int stage = -1;
  int rank = -1;
  int term = 0;  // ascending: holders of one term are added first, then the terms
  bool gives = true, gets = true;
  bool sums = false;  // its rank adds; where no holder says so, the first one's
};
// Holders in the order in which they are added.
using SharedGroup = std::vector<SharedHolder>;

// The rank that adds.
int OwnerOf(const SharedGroup& group);

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
#ifdef PIPEWRIGHT_CHECK_MESSAGES
  bool check_messages = true;
#else
  bool check_messages = false;
#endif
};

// Leaves the last kReservedTags tags of the transport to its callers.
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
  // A group's gradients leave at the last REDUCE_GRAD of its stages, or when the body says that
  // they are ready; the sums are there before a STEP. A stage's STEP first waits until the values
  // that it sent forward have left.
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
