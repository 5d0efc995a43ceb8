#include "passes/graph/error_context.h"

#include <utility>

#include "passes/graph/model.h"

namespace pipewright {

static thread_local std::string kept;

void ErrorContext::Keep() const noexcept {
  try {
    if (kept.empty()) kept = std::string(node_->kind().toQualString()) + ", " + Origin(node_);
  } catch (const std::exception&) {  // the message then names no operation
  }
}

std::string ErrorContext::Take() { return std::exchange(kept, {}); }

}  // namespace pipewright
