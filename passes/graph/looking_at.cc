#include "passes/graph/looking_at.h"

#include <utility>

#include "passes/graph/model.h"

namespace pipewright {

static thread_local std::string kept;

void LookingAt::Keep() const noexcept {
  try {
    if (kept.empty()) kept = std::string(node_->kind().toQualString()) + ", " + Origin(node_);
  } catch (const std::exception&) {  // the message then names no operation
  }
}

std::string LookingAt::Take() { return std::exchange(kept, {}); }

}  // namespace pipewright
