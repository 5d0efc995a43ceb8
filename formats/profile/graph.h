// Converts a profile to PipeDream's graph text, which has a forward time, a backward time and the
// sizes of outputs for each node.
#pragma once
#include "formats/graph_text.h"
#include "formats/profile/profile.h"

namespace pipewright {

// Returns the model's inputs as nodes "input0 -- Input0", then the profile's nodes, in its order.
// Edges are grouped by destination, one for each pair of nodes. The graph leaves out the split of
// the backward pass, kept bytes, buffers and links.
ModelGraph GraphOfProfile(const Profile& profile);

}  // namespace pipewright
