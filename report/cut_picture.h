// Draws the modules of a package, colored by stage, and the values between them.
#pragma once
#include <string>

#include "report/view.h"

namespace pipewright {

// Draws a box for each module, in order; arrows to the next one are straight, those that skip
// modules go around on the right. Values that cross between stages are red, and the tooltip names
// each value.
std::string CutSvg(const PackageView& view);

}  // namespace pipewright
