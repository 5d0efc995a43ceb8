// Draws the modules of a package, coloured by stage, and the values between them.
#pragma once
#include <string>

#include "report/view.h"

namespace pipewright {

// A box a module, in order; arrows to the next one are straight, those that skip modules go around
// on the right. What crosses between stages is red, and its hint names each value.
std::string CutSvg(const PackageView& view);

}  // namespace pipewright
