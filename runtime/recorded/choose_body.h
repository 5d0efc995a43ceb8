// Chooses a module's body for inputs of one signature: autograd's, or lists of operations (body.h).
// Lists are recorded while autograd's body runs the first microbatches, compared with it bit for
// bit on two of them or more, and used from then on if they are faster. Whatever cannot be
// recorded, or gives different bits, stays with autograd.
#pragma once
#include <torch/csrc/jit/ir/ir.h>

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "formats/job.h"
#include "runtime/recorded/body.h"

namespace pipewright {

// Returns PIPEWRIGHT_BODY, or else the job's choice, if any. Throws Error for an unknown name.
std::optional<BodyChoice> BodyAskedFor(std::optional<BodyChoice> of_job);

// Lets `module` run as lists if `asked` allows it: fills LoadedModule::recorded. With a reason
// `against`, the module stays with autograd.
void UseBody(LoadedModule& module, BodyChoice asked, const std::string& against = "");

// Note what autograd's body saw: a forward, and the gradients of the outputs (undefined: none).
void NoteForward(RecordedBody& body, double seconds);
void NoteGradients(RecordedBody& body, const Tensors& outputs, const Tensors& gradients);

// Returns true if the lists may run; first records and compares them if that is due.
bool IsReady(const LoadedModule& module, const std::shared_ptr<RecordedBody>& body,
             const std::vector<c10::IValue>& inputs);

// Ends comparisons, so that they do not disturb a measurement: chooses a body for signatures that
// are still compared.
void ChooseNow(RecordedBodies& bodies);

// Limit on the runs of a module by itself until its body is chosen.
inline constexpr int kMostRunsToChoose = 16;
// Returns true if a few forwards already show that operations are too long for lists to matter.
bool IsPlainlyLong(const RecordedBodies& bodies);

// Makes this signature stay with autograd from now on.
void RefuseLists(RecordedBody& body, const std::string& why);

// The state of the most recent signature: whether it runs as lists, whether that is settled, and
// why it does not.
struct BodyState {
  bool lists = false, settled = true;
  std::string refusal;
  bool asked = false;  // autograd was asked for, by the job or by PIPEWRIGHT_BODY
};
BodyState StateOf(const LoadedModule& module);

}  // namespace pipewright
