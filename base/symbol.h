// Sizes that depend on the input: expressions of symbols, as exports record them.
#pragma once
#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

namespace pipewright {

// The symbols that occur in `expression`, in order; names of functions are none.
std::vector<std::string> SymbolsOf(const std::string& expression);

// The value of `expression`, written as sympy prints integers: numbers, symbols, + - * // ** %,
// parentheses, Mod, FloorDiv, CeilDiv, Max, Min, Pow, PowByNatural, floor, PythonMod, TruncToInt,
// BitwiseFn_bitwise_and and _or. Throws Error for anything else, an unknown symbol, a division by
// zero, or a value beyond 64 bits.
int64_t EvaluateSize(const std::string& expression, const std::map<std::string, int64_t>& symbols);

// The only symbol that `symbols` lacks, and what it is where `expression` is `value`: ("s0", 3) of
// "2*s0 + 1" and 7. None where it lacks none or several, where the expression is not linear in it,
// and where EvaluateSize throws. Throws Error where it is linear, and no whole number does.
std::optional<std::pair<std::string, int64_t>> SolveSize(
    const std::string& expression, int64_t value, std::map<std::string, int64_t> symbols);

}  // namespace pipewright
