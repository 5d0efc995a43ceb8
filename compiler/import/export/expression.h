// Makes size expressions of exports readable.
#pragma once
#include <string>

namespace pipewright {

// Converts SymPy's srepr, "Mul(Integer(2), Symbol('s0', positive=True))", to "2*s0". Functions
// other than sums and products keep their name: "FloorDiv(s0, 2)". Returns other text unchanged.
std::string SizeExpression(const std::string& srepr);

}  // namespace pipewright
