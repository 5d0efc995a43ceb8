#include "base/symbol.h"

#include <algorithm>
#include <cctype>
#include <set>
#include <vector>

#include "base/error.h"

namespace pipewright {

namespace {

constexpr int kMaxDepth = 200;

int64_t FloorDivide(int64_t a, int64_t b) { return a / b - (a % b != 0 && (a < 0) != (b < 0)); }

struct Parser {
  const std::string& text;
  const std::map<std::string, int64_t>& symbols;
  std::set<std::string>* lacking = nullptr;  // if set, collects unknown symbols instead of failing
  size_t at = 0;
  int depth = 0;

  [[noreturn]] void Fail(const std::string& what) const {
    throw Error("size \"" + text + "\"", what);
  }
  void SkipSpace() {
    while (at < text.size() && text[at] == ' ') ++at;
  }
  bool Take(const std::string& token) {
    SkipSpace();
    if (text.compare(at, token.size(), token) != 0) return false;
    // "*" is not the first half of "**".
    if (token == "*" && text.compare(at, 2, "**") == 0) return false;
    at += token.size();
    return true;
  }
  bool TakeWord(const std::string& word) {
    SkipSpace();
    const size_t end = at + word.size();
    const bool ends = end >= text.size() ||
                      (!std::isalnum(static_cast<unsigned char>(text[end])) && text[end] != '_');
    return ends && text.compare(at, word.size(), word) == 0 && Take(word);
  }
  int64_t Checked(bool overflow, int64_t value) const {
    if (overflow) Fail("does not fit 64 bits");
    return value;
  }
  int64_t Divide(int64_t a, int64_t b, bool modulo) const {
    if (b == 0 && lacking) return 0;  // only looked at
    if (b == 0) Fail("divides by zero");
    if (b == -1) return modulo ? 0 : Checked(a == INT64_MIN, a == INT64_MIN ? 0 : -a);
    return modulo ? a - FloorDivide(a, b) * b : FloorDivide(a, b);
  }
  int64_t Power(int64_t base, int64_t exponent) const {
    if (exponent < 0 || exponent > 63) Fail("has an exponent that is not from 0 to 63");
    int64_t out = 1;
    bool overflow = false;
    for (; exponent > 0; --exponent) overflow |= __builtin_mul_overflow(out, base, &out);
    return Checked(overflow, out);
  }

  int64_t Call(const std::string& name) {
    std::vector<int64_t> arguments;
    do arguments.push_back(Sum());
    while (Take(","));
    if (!Take(")")) Fail("lacks a \")\"");
    if (name == "Max" || name == "Min" || name == "max" || name == "min") {
      auto [low, high] = std::minmax_element(arguments.begin(), arguments.end());
      return name == "Max" || name == "max" ? *high : *low;
    }
    if (arguments.size() == 2) {
      if (name == "FloorDiv") return Divide(arguments[0], arguments[1], false);
      if (name == "CeilDiv") return -Divide(-arguments[0], arguments[1], false);
      if (name == "Pow" || name == "PowByNatural") return Power(arguments[0], arguments[1]);
      if (name == "BitwiseFn_bitwise_and") return arguments[0] & arguments[1];
      if (name == "BitwiseFn_bitwise_or") return arguments[0] | arguments[1];
      if (name == "Mod" || name == "PythonMod") return Divide(arguments[0], arguments[1], true);
    }
    if (arguments.size() == 1 && (name == "floor" || name == "TruncToInt")) return arguments[0];
    Fail("uses " + name + "(), which is not known");
  }
  int64_t Atom() {
    SkipSpace();
    if (Take("(")) {
      int64_t value = Or();
      if (!Take(")")) Fail("lacks a \")\"");
      return value;
    }
    size_t begin = at;
    while (at < text.size() &&
           (std::isalnum(static_cast<unsigned char>(text[at])) || text[at] == '_'))
      ++at;
    std::string word = text.substr(begin, at - begin);
    if (word.empty()) Fail("ends early at column " + std::to_string(at + 1));
    if (std::isdigit(static_cast<unsigned char>(word[0]))) {
      int64_t value = 0;
      bool overflow = false;
      for (char c : word) {
        if (!std::isdigit(static_cast<unsigned char>(c))) Fail("has a malformed number");
        overflow |= __builtin_mul_overflow(value, 10, &value) ||
                    __builtin_add_overflow(value, c - '0', &value);
      }
      return Checked(overflow, value);
    }
    if (Take("(")) return Call(word);
    auto found = symbols.find(word);
    if (found == symbols.end() && lacking) return lacking->insert(word), 1;
    if (found == symbols.end()) Fail("uses the symbol " + word + ", whose value is not known");
    return found->second;
  }
  int64_t Factor() {
    if (++depth > kMaxDepth) Fail("is nested too deeply");
    int64_t value;
    if (Take("-")) {
      value = Checked(false, -Factor());
    } else {
      value = Atom();
      if (Take("**")) value = Power(value, Factor());
    }
    --depth;
    return value;
  }
  int64_t Product() {
    int64_t value = Factor();
    while (true) {
      if (Take("//"))
        value = Divide(value, Factor(), false);
      else if (Take("%"))
        value = Divide(value, Factor(), true);
      else if (Take("*")) {
        int64_t other = Factor();
        bool overflow = __builtin_mul_overflow(value, other, &value);
        value = Checked(overflow, value);
      } else
        return value;
    }
  }
  int64_t Sum() {
    int64_t value = Product();
    while (true) {
      bool add = Take("+");
      if (!add && !Take("-")) return value;
      int64_t other = Product();
      bool overflow = add ? __builtin_add_overflow(value, other, &value)
                          : __builtin_sub_overflow(value, other, &value);
      value = Checked(overflow, value);
    }
  }
  int64_t Comparison() {
    int64_t value = Sum();
    for (const char* sign : {"==", "!=", "<=", ">=", "<", ">"}) {
      if (!Take(sign)) continue;
      const int64_t other = Sum();
      switch (sign[0]) {
        case '=':
          return value == other;
        case '!':
          return value != other;
        case '<':
          return sign[1] ? value <= other : value < other;
        default:
          return sign[1] ? value >= other : value > other;
      }
    }
    return value;
  }
  int64_t Not() {
    if (++depth > kMaxDepth) Fail("is nested too deeply");
    const int64_t value = TakeWord("not") ? !Not() : Comparison();
    --depth;
    return value;
  }
  int64_t And() {
    int64_t value = Not();
    while (TakeWord("and")) value = Not() && value;
    return value;
  }
  int64_t Or() {
    int64_t value = And();
    while (TakeWord("or")) value = And() || value;
    return value;
  }
};

int64_t Evaluate(Parser parser, bool condition = false) {
  int64_t value = condition ? parser.Or() : parser.Sum();
  parser.SkipSpace();
  if (parser.at != parser.text.size())
    parser.Fail("is not understood from column " + std::to_string(parser.at + 1));
  return value;
}

}  // namespace

std::vector<std::string> SymbolsOf(const std::string& expression) {
  std::vector<std::string> found;
  auto part = [](char c) { return std::isalnum(static_cast<unsigned char>(c)) || c == '_'; };
  for (size_t at = 0, end; at < expression.size(); at = end) {
    for (end = at; end < expression.size() && part(expression[end]);) ++end;
    if (end == at)
      ++end;
    else if (std::isalpha(static_cast<unsigned char>(expression[at])) &&
             (end == expression.size() || expression[end] != '('))
      found.push_back(expression.substr(at, end - at));
  }
  return found;
}

int64_t EvaluateSize(const std::string& expression, const std::map<std::string, int64_t>& symbols) {
  return Evaluate({expression, symbols});
}

bool EvaluateCondition(const std::string& condition,
                       const std::map<std::string, int64_t>& symbols) {
  return Evaluate({condition, symbols}, /*condition=*/true) != 0;
}

bool IsCondition(const std::string& text) {
  std::set<std::string> symbols;
  try {
    Evaluate({text, {}, &symbols}, /*condition=*/true);
    return true;
  } catch (const Error&) {
    return false;
  }
}

std::optional<std::pair<std::string, int64_t>> SolveSize(const std::string& expression,
                                                         int64_t value,
                                                         std::map<std::string, int64_t> symbols) {
  std::set<std::string> lacking;
  std::string symbol;
  int64_t first = 0, slope = 0;
  auto at = [&](int64_t x) {
    symbols[symbol] = x;
    return EvaluateSize(expression, symbols);
  };
  try {
    Evaluate({expression, symbols, &lacking});
    if (lacking.size() != 1) return {};
    symbol = *lacking.begin();
    first = at(1), slope = at(2) - first;
    if (slope == 0) return {};
    // Large numbers are tried too, because Mod and Min look linear for small ones.
    for (int64_t x : {int64_t{3}, int64_t{1009}, int64_t{1} << 30})
      if (at(x) - first != slope * (x - 1)) return {};
  } catch (const Error&) {  // it has no value, at least not for all of these numbers
    return {};
  }
  const int64_t x = 1 + (value - first) / slope;
  if (x >= 0 && at(x) == value) return {{symbol, x}};
  throw Error("size \"" + expression + "\"", "is " + std::to_string(value) + " for no integer " + symbol);
}

}  // namespace pipewright
