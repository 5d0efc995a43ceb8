// The executor runs one rank's action list of a plan over a transport. It handles order, buffers
// and messages; StageBody does the computation, so tests can run the same code without torch.
#pragma once
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "plan/plan.h"
#include "runtime/exec/transport.h"

namespace pipewright {

// The computation of one rank, for all of its stages.
class StageBody {
 public:
  virtual ~StageBody() = default;

  // Returns memory to receive one message along StageGraph::edges[edge], forward or backward.
  // `slot` is the receive buffer of the edge that the plan names. The memory may be that of an
  // earlier message of this slot, to which nothing refers any more. `on_device`: the transport
  // takes values on a device (Transport::TakesDevices).
  virtual Bundle Allocate(int edge, int microbatch, bool backward, int slot, bool on_device) = 0;

  // Returns the expected size of that message, or -1 if unknown; the sender checks its message
  // against it. MPI does not report reliably that a message is longer than its receive buffer.
  virtual int64_t MessageBytes(int edge, int microbatch, bool backward);

  // Returns a message that Forward or Backward has made in the host's memory, for a transport that
  // takes nothing else. By default it is there already.
  virtual Bundle OnHost(Bundle message);

  // `inputs` has one bundle per incoming edge of `stage`, in the order of StageGraph::edges.
  // Returns one bundle per outgoing edge. The body itself provides the inputs of the model.
  virtual std::vector<Bundle> Forward(int stage, int microbatch, std::vector<Bundle> inputs) = 0;

  // `kind` is kBackward, kInputGrad or kWeightGrad. `gradients` has one bundle per outgoing edge
  // that carries gradients (none for kWeightGrad). Returns one bundle per incoming edge that
  // carries gradients (none for kWeightGrad).
  virtual std::vector<Bundle> Backward(ActionKind kind, int stage, int microbatch,
                                       std::vector<Bundle> gradients) = 0;

  // Returns the gradient memory that `holder` of `group` contributes, in place. For a holder that
  // receives the sum, the sum is written to the same memory.
  virtual Bundle Gradient(int group, int holder) = 0;
  virtual Bundle Scratch(int group) = 0;                         // new memory for another's part
  virtual void Add(const Bundle& into, const Bundle& from) = 0;  // into += from
  virtual void Copy(const Bundle& into, const Bundle& from) = 0;

  // Returns true if the transport adds the gradients of a group (Transport::AllReduce), whose
  // Gradient then lies on a device. Must be the same on all ranks of the group.
  virtual bool AllReduces(int /*group*/) { return false; }

  // Backward may call `ready(group)` once this rank's contribution to the group is final for this
  // step. The exchange of the group then starts immediately and overlaps with the rest of the
  // backward. By default no group is announced, and exchanges start at REDUCE_GRAD.
  virtual void OnReady(std::function<void(int group)> ready);

  // Returns an object for whose life the thread launches exchanges of gradients: on a device, these
  // have a stream of their own, which they must not share with computations that come later.
  // `begins`: a contribution is complete, and what is launched comes after it. EndExchanges makes
  // everything that is launched later come after all exchanges. By default both do nothing.
  virtual std::shared_ptr<void> Exchanging(bool begins);
  virtual void EndExchanges();

  virtual void Step(int stage) = 0;  // runs the optimizer step of one stage

  // Mark a moment in what the body computes on a device, and return when the device reached it, in
  // seconds on the steady clock. By default the host computes, and its own clock is used (-1).
  virtual int Mark() { return -1; }
  virtual double Moment(int /*mark*/) { return 0; }
  // Returns how many of these moments the device has reached. Never waits.
  virtual int Reached() { return 0; }

  // Called before a Forward or Backward whose action names a weight version, which is the number of
  // STEPs of this stage that precede it in the list. The default throws an error: only one version
  // is kept.
  virtual void UseVersion(int stage, int version);

  // Loads and releases the weights of an offloaded stage. The default throws an error, because most
  // bodies keep all their weights in memory.
  virtual void Load(int stage);
  virtual void Evict(int stage);
};

// One contribution to a sum over ranks: a module that holds a shared weight, or one replica's share
// of a gradient.
struct SharedHolder {
  int stage = -1;
  int rank = -1;
  int term = 0;  // ascending; holders of one term are summed first, then the terms
  bool gives = true, gets = true;
  bool sums = false;  // this holder's rank adds; if no holder sets it, the first one's rank
};
// Holders in summation order.
using SharedGroup = std::vector<SharedHolder>;

struct TraceEvent {
  Action action;
  double start = 0, end = 0;  // seconds on the steady clock
  double waited = 0;          // seconds of it spent waiting for messages
  int64_t resident = 0;       // bytes of this process at the end; 0: not measured
};

struct ExecutorOptions {
  // Sends a header (plan, edge, microbatch, bytes) before every message; the receiver posts the
  // receive for the message only after the header matches. Must be equal on all ranks. Messages
  // with values on a device have none: their receives must be posted in order.
#ifdef PIPEWRIGHT_CHECK_MESSAGES
  bool check_messages = true;
#else
  bool check_messages = false;
#endif
  bool trace_memory = false;  // sets TraceEvent::resident, which takes microseconds
};

// Runs one rank's list. The last kReservedTags tags of the transport are left to its callers.
class Executor {
 public:
  // `plan`, `graph`, `groups`, `body` and `transport` must outlive the executor. Throws Error if
  // this rank's list does not match the graph (a transfer without an edge, a stage of another rank,
  // a step of a shared weight without REDUCE_GRAD).
  Executor(const Plan& plan, const StageGraph& graph, const std::vector<SharedGroup>& groups,
           StageBody& body, Transport& transport, const ExecutorOptions& options = {});
  ~Executor();

  // Runs this rank's list once: one optimizer step, or one forward pass over all microbatches.
  // Transport::status shows it as `step` (from 0), and after it the number of steps done, which is
  // still `step` where `last` is false.
  // Exceptions of the body or the transport are rethrown as Error("rank R, stage S, microbatch M,
  // action 2F5", ...); Aborted, which means that another rank has failed, passes unchanged. Returns
  // without waiting for the other ranks: messages of this step and of the next may still be in
  // flight.
  //
  // A group's exchange starts at the last REDUCE_GRAD of its stages, or when the body reports the
  // group as ready; the sums are complete before STEP. The STEP of a stage first waits until the
  // activations that it sent have left.
  //
  // To accumulate gradients over several runs of the list, pass `last` = false for all but the last
  // run: REDUCE_GRAD and STEP are then skipped.
  //
  // In a `cold` run, the first microbatches' messages go through host memory: all that some rank
  // exchanges before it has run everything once. All ranks must pass the same.
  void RunStep(int64_t step, bool last = true, bool cold = false);

  // Returns true if a cold run sends all messages through host memory, as it does if each stage's
  // STEP comes last.
  bool ColdOnHostOnly() const;

  // Returns the events of the last step, in order. With a device, times are those of its computes,
  // and transfers take none. Waits for it if it has not finished them.
  const std::vector<TraceEvent>& trace() const;

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace pipewright
