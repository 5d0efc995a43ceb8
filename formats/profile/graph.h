// A profile as PipeDream's graph text has it: one time forward, one back, sizes of outputs.
#pragma once
#include "formats/graph_text.h"
#include "formats/profile/profile.h"

namespace pipewright {

// Inputs of the model first, as nodes "input0 -- Input0", then the profile's nodes, in its order.
// Edges are grouped by destination, one for each pair of nodes. What the text cannot say is left
// out: the split of the backward pass, what is kept, buffers, links.
ModelGraph GraphOfProfile(const Profile& profile);

}  // namespace pipewright
