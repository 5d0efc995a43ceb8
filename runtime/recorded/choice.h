// Chooses a module's body for inputs of one signature: autograd's, or lists of operations (body.h).
// Lists are recorded while autograd's body runs the first microbatches, compared with it bit for
// bit on two of them or more, and used from then on where they are faster. Whatever cannot be
// recorded, or comes out differently, stays with autograd.
#pragma once
#include <torch/csrc/jit/ir/ir.h>

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "formats/job.h"
#include "runtime/recorded/body.h"

namespace pipewright {

// PIPEWRIGHT_BODY, or what the job says; none: nobody asks. Throws Error for names of no body.
std::optional<BodyChoice> BodyAskedFor(std::optional<BodyChoice> of_job);

// Lets `module` run as lists where `asked` allows it: fills LoadedModule::recorded. A module of
// which weights are `on_disk` stays with autograd.
void UseBody(LoadedModule& module, BodyChoice asked, bool on_disk = false);

// Note what autograd's body saw: a forward, and the gradients of the outputs (undefined: none).
void NoteForward(RecordedBody& body, double seconds);
void NoteGradients(RecordedBody& body, const Tensors& outputs, const Tensors& gradients);

// Returns whether the lists may run; records and compares first where that is due.
bool IsReady(const LoadedModule& module, const std::shared_ptr<RecordedBody>& body,
             const std::vector<c10::IValue>& inputs);

// For who measures what comes next: signatures that are still compared are chosen for, or stay with
// autograd.
void ChooseNow(RecordedBodies& bodies);

// The most runs of a module, alone, until it is chosen.
inline constexpr int kMostRunsToChoose = 16;
// Returns whether a few forwards already show that operations are too long for lists to matter.
bool IsPlainlyLong(const RecordedBodies& bodies);

// No more lists for this signature.
void RefuseLists(RecordedBody& body, const std::string& why);

// The state of the signature met last: whether it runs as lists, whether that may still change, and
// why not.
struct BodyState {
  bool lists = false, settled = true;
  std::string refusal;
};
BodyState StateOf(const LoadedModule& module);

}  // namespace pipewright
