// The choices of `pipewright partition`: how to search, and what to minimize.
#pragma once
#include <string>

namespace pipewright {

enum class PartitionMode { kExact, kFast, kPipeDream };

// The names of --mode and in reports: "exact", "fast", "pipedream". Throws Error for others.
const char* ToText(PartitionMode mode);
PartitionMode PartitionModeFromText(const std::string& text);

enum class PartitionObjective { kBottleneck, kStep };

// Returns the objective with a name of --objective: "bottleneck" or "step". Throws Error for
// others.
PartitionObjective PartitionObjectiveFromText(const std::string& text);

}  // namespace pipewright
