// The values of --mode and --objective of `pipewright partition`.
#pragma once
#include <string>

namespace pipewright {

enum class PartitionMode { kExact, kFast, kPipeDream };

// The names in --mode and in reports: "exact", "fast", "pipedream". Throws Error for others.
const char* ToText(PartitionMode mode);
PartitionMode PartitionModeFromText(const std::string& text);

enum class PartitionObjective { kBottleneck, kStep };

// Returns the objective that --objective names: "bottleneck" or "step". Throws Error for others.
PartitionObjective PartitionObjectiveFromText(const std::string& text);

}  // namespace pipewright
