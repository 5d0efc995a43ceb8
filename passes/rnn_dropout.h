// Makes dropout between the layers of an RNN an operation of its own.
#pragma once
#include "passes/graph/model.h"

namespace pipewright {

// Replaces every lstm, gru and rnn with dropout by one call per layer with aten::dropout in
// between, so that the dropout can have a random key like any other. Throws Error for packed
// sequences and for a variable number of layers.
void SplitRnnDropout(Model& model);

}  // namespace pipewright
