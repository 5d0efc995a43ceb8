// The second body of a module, behind the same interface as autograd's (runtime/stage/island.h): lists of
// operations, recorded while autograd's body runs the first microbatches and run without it. When
// they are recorded, and whether they are used, is choice.h's affair.
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

// All that is known of a module on inputs of one signature.
struct RecordedBody {
  // The signature. A tensor's geometry, or the value of what is none.
  std::vector<Geometry> geometry;
  std::vector<c10::IValue> scalars;
  std::vector<bool> wanted;

  enum class State { kWatched, kChecked, kUsed, kRefused } state = State::kWatched;
  std::string refusal;
  int forwards = 0;            // seen by autograd
  double forward_seconds = 0;  // the shortest of them
  bool gradients_known = false;
  int checks = 0;
  // Inputs to compare on are made of these: the recorded inputs, and values of inputs of whole
  // numbers (NoteValues). The inputs stay while lists are compared, or may be again.
  std::vector<c10::IValue> recorded;
  Tensors seen;
  double eager_seconds = 0, list_seconds = 0;  // F and B in the checks; the shortest
  std::unique_ptr<RecordedGraph> graph;
};

// The bodies of one module, for the last kSignatures signatures that it met.
struct RecordedBodies {
  static constexpr size_t kSignatures = 32;
  std::vector<std::shared_ptr<RecordedBody>> bodies;
  std::string refusal;    // of the module, whatever its inputs
  int nodes = 1;          // operations of the module's code
  bool always = false;    // recorded at once, and used where they are slower, too
  bool now = false;       // recorded without waiting for others that are under way
  bool tells = false;     // what is chosen, on stderr
  bool spot_checks = true;  // spot_check.h
  int64_t forwards = 0;   // for backward
  int64_t recorded = 0;   // signatures
  uint64_t step = ~0ull;  // of the newest forward
};

// One microbatch under way in the lists.
struct RecordedRun {
  std::shared_ptr<RecordedBody> body;
  Tensors slots;
  // To run it again by autograd; until B or I. `buffers`: as RecordedGraph::written, before F.
  std::vector<c10::IValue> given;
  Tensors buffers;
  RandomKey key;
  std::shared_ptr<SpotCheck> check;  // null: most often
};

// The body for these inputs; made where there is none. Null: there can be none.
std::shared_ptr<RecordedBody> BodyFor(RecordedBodies& bodies,
                                      const std::vector<c10::IValue>& inputs,
                                      const std::vector<bool>& wanted);

// F; `run` is what the others take. Outputs as the interpreter's.
std::vector<c10::IValue> ForwardRecorded(const LoadedModule& module,
                                         const std::shared_ptr<RecordedBody>& body,
                                         std::vector<c10::IValue> inputs, RecordedRun& run);
// Makes the buffers that F writes to what they were before it.
void Undo(const LoadedModule& module, const RecordedRun& run);
// Returns whether B and I of `run` hold for these gradients.
bool GradientsFit(const RecordedBody& body, const Tensors& gradients);
// B: of the inputs, then of the weights.
std::pair<Tensors, Tensors> BackwardRecorded(const LoadedModule& module, RecordedRun run,
                                             Tensors gradients);
Tensors InputGradientsRecorded(const LoadedModule& module, RecordedRun& run, Tensors gradients);
Tensors WeightGradientsRecorded(const LoadedModule& module, RecordedRun run);

}  // namespace pipewright
