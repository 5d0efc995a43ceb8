// The second body of a module, behind the same interface as autograd's (runtime/island.h): lists of
// operations, recorded while autograd's body runs the first microbatches, compared with it bit for
// bit on two of them, and used from then on where operations are short. Whatever cannot be
// recorded, or comes out differently, stays with autograd.
#pragma once
#include <memory>
#include <string>
#include <vector>

#include "passes/random_ops.h"
#include "runtime/messages.h"
#include "runtime/recorded/graph.h"

namespace pipewright {

struct LoadedModule;

// What is known of a module on inputs of one signature.
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
  std::unique_ptr<RecordedGraph> graph;
};

// Of one module; the last kSignatures signatures.
struct RecordedBodies {
  static constexpr size_t kSignatures = 32;
  std::vector<std::shared_ptr<RecordedBody>> bodies;
  int nodes = 1;  // operations of the module's code
};

// One microbatch under way in the lists.
struct RecordedRun {
  std::shared_ptr<RecordedBody> body;
  Tensors slots;
  std::vector<c10::IValue> given;  // to run it again by autograd; until B or I
  RandomKey key;
};

// Says on stderr which body a module has from now on; `refusal`: why it is autograd's, or "".
void TellBody(int module, const std::string& refusal);

// The body for these inputs; made where there is none.
std::shared_ptr<RecordedBody> BodyFor(RecordedBodies& bodies,
                                      const std::vector<c10::IValue>& inputs,
                                      const std::vector<bool>& wanted);

// What autograd's body saw: a forward, and the gradients of the outputs (undefined: none).
void NoteForward(RecordedBody& body, double seconds);
void NoteGradients(RecordedBody& body, const Tensors& outputs, const Tensors& gradients);

// Whether the lists may run; records and compares first where that is due.
bool IsReady(const LoadedModule& module, const std::shared_ptr<RecordedBody>& body,
             const std::vector<c10::IValue>& inputs);

// F; `run` is what the others take. Outputs as the interpreter's.
std::vector<c10::IValue> ForwardRecorded(const LoadedModule& module,
                                         const std::shared_ptr<RecordedBody>& body,
                                         std::vector<c10::IValue> inputs, RecordedRun& run);
// Whether B and I of `run` hold for these gradients.
bool GradientsFit(const RecordedBody& body, const Tensors& gradients);
// B: of the inputs, then of the weights.
std::pair<Tensors, Tensors> BackwardRecorded(const LoadedModule& module, RecordedRun run,
                                             Tensors gradients);
Tensors InputGradientsRecorded(const LoadedModule& module, RecordedRun& run, Tensors gradients);
Tensors WeightGradientsRecorded(const LoadedModule& module, RecordedRun run);

}  // namespace pipewright
