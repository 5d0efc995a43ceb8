// Sizes that depend on the input: expressions of symbols, as exports record them.
#pragma once
#include <cstdint>
#include <map>
#include <string>

namespace pipewright {

// The value of `expression`, written as sympy prints integers: numbers, symbols, + - * // ** %,
// parentheses, Mod, FloorDiv, CeilDiv, Max, Min, floor, PythonMod, TruncToInt. Throws Error for
// anything else, an unknown symbol, a division by zero, or a value beyond 64 bits.
int64_t EvaluateSize(const std::string& expression, const std::map<std::string, int64_t>& symbols);

}  // namespace pipewright
