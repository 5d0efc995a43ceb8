#include "base/weight_kind.h"

namespace pipewright {

const char* ToText(WeightKind kind) {
  switch (kind) {
    case WeightKind::kParameter:
      return "parameter";
    case WeightKind::kBuffer:
      return "buffer";
    case WeightKind::kConstant:
      return "constant";
  }
  return "";
}

std::optional<WeightKind> WeightKindFromText(const std::string& text) {
  for (WeightKind kind : {WeightKind::kParameter, WeightKind::kBuffer, WeightKind::kConstant})
    if (text == ToText(kind)) return kind;
  return std::nullopt;
}

}  // namespace pipewright
