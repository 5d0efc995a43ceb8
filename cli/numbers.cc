#include "cli/numbers.h"

#include <CLI/CLI.hpp>
#include <charconv>
#include <limits>

namespace pipewright {

namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();

template <class Number>
std::string Text(Number number) {
  char out[32];
  return std::string(out, std::to_chars(out, out + sizeof out, number).ptr);
}

// Parses all of `text`. Numbers that are too large for the type become its largest.
template <class Number>
bool Parse(const std::string& text, Number& number) {
  const char* end = text.data() + text.size();
  auto [rest, error] = std::from_chars(text.data(), end, number);
  if (error == std::errc::result_out_of_range)
    number =
        text[0] == '-' ? std::numeric_limits<Number>::lowest() : std::numeric_limits<Number>::max();
  return rest == end && error != std::errc::invalid_argument && number == number;
}

template <class Number>
CLI::Validator Check(Number least, Number most, bool exclude_least, const std::string& kind,
                     const std::string& shown) {
  return CLI::Validator(
      [=](std::string& text) -> std::string {
        Number number;
        const std::string wrong = "\"" + text + "\" is ";
        if (!Parse(text, number)) return wrong + "not a " + kind;
        if (number > most) return wrong + "more than " + Text(most);
        if (number < least) return wrong + "less than " + Text(least);
        if (exclude_least && number == least) return wrong + "not more than " + Text(least);
        return "";
      },
      shown);
}

}  // namespace

CLI::Validator AtLeast(int64_t least, int64_t most) {
  return Check(least, most, false, "whole number", "at least " + Text(least));
}

CLI::Validator InRange(int64_t least, int64_t most) {
  return Check(least, most, false, "whole number", Text(least) + " to " + Text(most));
}

CLI::Validator NumberAtLeast(double least) {
  return Check(least, kInfinity, false, "number", "at least " + Text(least));
}

CLI::Validator NumberMoreThan(double bound) {
  return Check(bound, kInfinity, true, "number", "more than " + Text(bound));
}

CLI::Validator NumberInRange(double least, double most) {
  return Check(least, most, false, "number", Text(least) + " to " + Text(most));
}

}  // namespace pipewright
