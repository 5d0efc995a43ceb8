// Makes inputs to compare bodies on: in the form of the recorded ones, with other elements.
#pragma once
#include <ATen/core/ivalue.h>

#include <cstdint>
#include <vector>

#include "runtime/module/messages.h"

namespace pipewright {

// Adds the values of integer inputs to `seen`, for each input until it has several, because made-up
// values may be out of range. Returns true if an input now has several.
bool NoteValues(const std::vector<c10::IValue>& inputs, Tensors& seen);

// Returns true if an integer input has had one value only, which PerturbedInputs leaves unchanged.
bool HasOneValue(const Tensors& seen);

// Returns inputs with other elements. Integers become other values that the input has, or else has
// had. Floating-point numbers are drawn between the input's smallest and largest. Booleans are
// flipped only if `draw` is even, because a flipped mask may leave nothing to compare.
std::vector<c10::IValue> PerturbedInputs(const std::vector<c10::IValue>& inputs,
                                         const Tensors& seen, int draw);

// Copies tensors to memory of their own, with the strides that they have in `inputs`.
std::vector<c10::IValue> CopyInForm(std::vector<c10::IValue> inputs);

}  // namespace pipewright
