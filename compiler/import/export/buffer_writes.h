// Handles the writes of an exported model to its buffers.
#pragma once
#include <utility>
#include <vector>

#include "passes/graph/model.h"

namespace pipewright {

// A buffer (an input of the graph), and its content after the call.
using BufferWrite = std::pair<torch::jit::Value*, torch::jit::Value*>;

// Handles self.buffer = value: an export ends with a buffer.copy_(value) for each. Removes those
// that nothing in the graph reads, outputs included, and returns them. If the value is the result
// of an in-place operation on the buffer (self.count += 1), nothing remains to be written.
std::vector<BufferWrite> TakeAssignments(Model& model);

// Inserts buffer.copy_(value) as early as possible after the last use of the old content, next to
// the operation that made the value, so that later cuts leave the buffer to one module.
void WriteBack(Model& model, std::vector<BufferWrite> writes);

}  // namespace pipewright
