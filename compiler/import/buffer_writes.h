// What a call of an exported model leaves in its buffers.
#pragma once
#include <utility>
#include <vector>

#include "passes/model.h"

namespace pipewright {

// A buffer (an input of the graph), and its content after the call.
using BufferWrite = std::pair<torch::jit::Value*, torch::jit::Value*>;

// self.buffer = value: an export ends with buffer.copy_(value) for each. Takes those out that the
// graph, its outputs included, does not read; where the value is what an operation in place on the
// buffer returned (self.count += 1), nothing is left.
std::vector<BufferWrite> TakeAssignments(Model& model);

// buffer.copy_(value) as early as the old content is no longer used: beside what made the value, so
// that cuts after it leave the buffer to one module.
void WriteBack(Model& model, const std::vector<BufferWrite>& writes);

}  // namespace pipewright
