// The second body of a module, behind the same interface as autograd's (runtime/stage/island.h):
// lists of operations, recorded while autograd's body runs the first microbatches and then run
// without it. choose_body.h decides when they are recorded and whether they are used.
#pragma once
#include <memory>
#include <string>
#include <vector>

#include "ops/random_ops.h"
#include "runtime/module/messages.h"
#include "runtime/recorded/graph.h"

namespace pipewright {

struct LoadedModule;
struct SpotCheck;  // spot_check.h

// Holds all that is known of a module for inputs of one signature.
struct RecordedBody {
  // The signature: the geometry of each tensor, and the value of each other input.
  std::vector<Geometry> geometry;
  std::vector<c10::IValue> scalars;
  std::vector<bool> wanted;

  enum class State { kWatched, kChecked, kUsed, kRefused } state = State::kWatched;
  std::string refusal;
  int forwards = 0;            // seen by autograd
  double forward_seconds = 0;  // the shortest of them
  bool gradients_known = false;
  int checks = 0;
  // Inputs for comparisons are made from these: the recorded inputs, and the values of integer
  // inputs (NoteValues). `recorded` is kept as long as lists are compared or may be again.
  std::vector<c10::IValue> recorded;
  Tensors seen;
  double eager_seconds = 0, list_seconds = 0;  // F and B in the checks; the shortest
  std::unique_ptr<RecordedGraph> graph;
};

// The bodies of one module, for the last kSignatures signatures that it met.
struct RecordedBodies {
  static constexpr size_t kSignatures = 32;
  std::vector<std::shared_ptr<RecordedBody>> bodies;
  std::string refusal;    // why the module has no lists, for any inputs; "": none
  int nodes = 1;          // operations of the module's code
  bool always = false;    // records at once, and uses lists even if they are slower
  bool now = false;       // records without waiting for microbatches in flight
  bool tells = false;     // prints the choice on stderr
  bool spot_checks = true;  // spot_check.h
  int64_t forwards = 0;     // forwards with a backward
  int64_t recorded = 0;   // recordings, and comparisons that cost as much
  uint64_t step = ~0ull;  // the step of the newest forward
};

// One microbatch in flight in the lists.
struct RecordedRun {
  std::shared_ptr<RecordedBody> body;
  Tensors slots;
  // For running it again by autograd; kept until B or I. `buffers`: those in RecordedGraph::written
  // as they were before F.
  std::vector<c10::IValue> given;
  Tensors buffers;
  RandomKey key;
  std::shared_ptr<SpotCheck> check;  // usually null
};

// Returns the body for these inputs, made if there is none yet; null if there can be none.
std::shared_ptr<RecordedBody> BodyFor(RecordedBodies& bodies,
                                      const std::vector<c10::IValue>& inputs,
                                      const std::vector<bool>& wanted);

// Runs F and fills `run`, which the functions below take. Returns outputs like the interpreter's.
std::vector<c10::IValue> ForwardRecorded(const LoadedModule& module,
                                         const std::shared_ptr<RecordedBody>& body,
                                         std::vector<c10::IValue> inputs, RecordedRun& run);
// Restores the buffers that F writes to what they were before it.
void Undo(const LoadedModule& module, const RecordedRun& run);
// Returns true if the recorded B and I hold for these gradients.
bool GradientsFit(const RecordedBody& body, const Tensors& gradients);
// Runs B and returns the gradients of the inputs, then of the weights.
std::pair<Tensors, Tensors> BackwardRecorded(const LoadedModule& module, RecordedRun run,
                                             Tensors gradients);
Tensors InputGradientsRecorded(const LoadedModule& module, RecordedRun& run, Tensors gradients);
Tensors WeightGradientsRecorded(const LoadedModule& module, RecordedRun run);

}  // namespace pipewright
