#include "plan/partition/io/mode.h"

#include "base/error.h"
#include "base/text.h"

namespace pipewright {

const char* ToText(PartitionMode mode) {
  switch (mode) {
    case PartitionMode::kExact:
      return "exact";
    case PartitionMode::kFast:
      return "fast";
    case PartitionMode::kPipeDream:
      return "pipedream";
  }
  return "";
}

PartitionMode PartitionModeFromText(const std::string& text) {
  for (PartitionMode mode :
       {PartitionMode::kExact, PartitionMode::kFast, PartitionMode::kPipeDream})
    if (text == ToText(mode)) return mode;
  throw Error("--mode", Quote(text) + " is not exact, fast or pipedream");
}

PartitionObjective PartitionObjectiveFromText(const std::string& text) {
  if (text == "bottleneck") return PartitionObjective::kBottleneck;
  if (text == "step") return PartitionObjective::kStep;
  throw Error("--objective", Quote(text) + " is not bottleneck or step");
}

}  // namespace pipewright
