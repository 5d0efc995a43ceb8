// Sizes as exports write them, made readable.
#pragma once
#include <string>

namespace pipewright {

// From SymPy's srepr, "Mul(Integer(2), Symbol('s0', positive=True))", to "2*s0". Functions that are
// no sum or product keep their name: "FloorDiv(s0, 2)". Text of another form comes back as it is.
std::string SizeExpression(const std::string& srepr);

}  // namespace pipewright
