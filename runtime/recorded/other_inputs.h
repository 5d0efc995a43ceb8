// Inputs to compare bodies on: of the form of those that were recorded, and other in every element.
#pragma once
#include <ATen/core/ivalue.h>

#include <cstdint>
#include <vector>

#include "runtime/module/messages.h"

namespace pipewright {

// Adds the values of inputs of whole numbers to `seen`, each until it has several: others may be
// out of range. Returns whether an input has come to have several.
bool NoteValues(const std::vector<c10::IValue>& inputs, Tensors& seen);

// Returns whether an input of whole numbers has had one value only: OtherInputs leaves it alone.
bool HasOneValue(const Tensors& seen);

// Whole numbers become others of those that the input has, or else has had; numbers with a fraction
// are drawn between the smallest and the largest of the input (near the only one); truth values are
// flipped where `draw` is even: a mask turned round may leave nothing to compare.
std::vector<c10::IValue> OtherInputs(const std::vector<c10::IValue>& inputs, const Tensors& seen,
                                     int draw);

// Tensors in memory of their own, where their elements lie to each other as in those of `inputs`.
std::vector<c10::IValue> CopyInForm(std::vector<c10::IValue> inputs);

}  // namespace pipewright
