// Evaluates sizes that depend on the input: expressions of symbols, as exports record them.
#pragma once
#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

namespace pipewright {

// Returns the symbols in `expression` in order, with repeats. Names of functions are not symbols.
std::vector<std::string> SymbolsOf(const std::string& expression);

// Returns the value of `expression`, written as sympy prints integers: numbers, symbols, + - * //
// ** %, parentheses, Mod, FloorDiv, CeilDiv, Max, Min, max, min, Pow, PowByNatural, floor, PythonMod,
// TruncToInt, BitwiseFn_bitwise_and and _or. Throws Error for anything else, an unknown symbol, a
// division by zero, or a value beyond 64 bits.
int64_t EvaluateSize(const std::string& expression, const std::map<std::string, int64_t>& symbols);

// Returns the value of a condition on sizes, "(s0 % 2) == 0": comparisons of such expressions,
// `not`, `and`, and `or`. Throws the same.
bool EvaluateCondition(const std::string& condition, const std::map<std::string, int64_t>& symbols);

// Returns true if EvaluateCondition can read it.
bool IsCondition(const std::string& text);

// Returns the only symbol missing from `symbols` and the number for which `expression` is `value`:
// ("s0", 3) for "2*s0 + 1" and 7. Returns nothing if no symbol or several are missing, if the
// expression is not linear in the symbol, or if EvaluateSize throws. Throws Error if it is linear
// and has no solution among the integers from 0 up.
std::optional<std::pair<std::string, int64_t>> SolveSize(
    const std::string& expression, int64_t value, std::map<std::string, int64_t> symbols);

}  // namespace pipewright
