// Dropout between the layers of an RNN, as operations of its own.
#pragma once
#include "passes/model.h"

namespace pipewright {

// Every lstm, gru and rnn with dropout becomes one call a layer with aten::dropout between, so that
// the dropout can be keyed like any other. Throws Error for packed sequences and for a number of
// layers that is not fixed.
void SplitRnnDropout(Model& model);

}  // namespace pipewright
