// The kinds of weights, of models and of packages.
#pragma once
#include <optional>
#include <string>

namespace pipewright {

enum class WeightKind { kParameter, kBuffer, kConstant };

// The names in manifests and tables: "parameter", "buffer", "constant".
const char* ToText(WeightKind kind);
std::optional<WeightKind> WeightKindFromText(const std::string& text);

}  // namespace pipewright
