#include "base/size.h"

#include <charconv>
#include <cmath>
#include <cstdio>

#include "base/error.h"
#include "base/json.h"

namespace pipewright {

int64_t ParseSize(std::string_view text, const std::string& where) {
  auto fail = [&](const std::string& what) -> Error {
    return Error(
        where, "the size " + Quote(text) + " " + what,
        "write bytes, or a number with KB, MB, GB, TB (1000) or K, M, G, T, KiB, MiB, GiB, TiB "
        "(1024)");
  };
  std::string_view rest = text;
  while (!rest.empty() && rest.front() == ' ') rest.remove_prefix(1);
  while (!rest.empty() && rest.back() == ' ') rest.remove_suffix(1);
  if (rest.empty()) throw fail("is empty");
  if (rest.front() == '-') throw fail("is negative");
  double number = 0;
  auto [end, problem] = std::from_chars(rest.data(), rest.data() + rest.size(), number);
  if (problem != std::errc() || !std::isfinite(number)) throw fail("is not understood");
  std::string_view digits = rest.substr(0, static_cast<size_t>(end - rest.data()));
  std::string_view unit = rest.substr(digits.size());
  while (!unit.empty() && unit.front() == ' ') unit.remove_prefix(1);

  if (unit.empty()) {
    int64_t bytes = 0;
    auto [last, error] = std::from_chars(digits.data(), digits.data() + digits.size(), bytes);
    if (error == std::errc() && last == digits.data() + digits.size()) return bytes;
    if (error == std::errc::result_out_of_range) throw fail("is too large");
  }
  double factor = 1;
  if (!unit.empty()) {
    const bool letter = unit.size() == 1 && unit != "B" && unit != "b";  // as in Docker and Slurm
    // accelerate also accepts all-lower-case units such as "gib" for bytes.
    bool lower = unit == "kib" || unit == "mib" || unit == "gib" || unit == "tib";
    if (unit.back() == 'b' && !lower)
      throw fail("counts bits: its last letter is a lower-case b; for bytes it is B");
    if (unit.back() != 'B' && !lower && !letter) throw fail("has an unknown unit");
    std::string_view prefix = letter ? unit : unit.substr(0, unit.size() - 1);
    bool binary = letter || (prefix.size() == 2 && (prefix[1] == 'i' || prefix[1] == 'I'));
    if (!prefix.empty()) {
      size_t power = std::string_view("KMGT").find(static_cast<char>(std::toupper(prefix[0])));
      if (power == std::string_view::npos || (prefix.size() != 1 && !binary))
        throw fail("has an unknown unit");
      factor = std::pow(binary ? 1024.0 : 1000.0, static_cast<double>(power + 1));
    }
  }
  double bytes = std::floor(number * factor);
  if (bytes >= 9223372036854775808.0) throw fail("is too large");
  return static_cast<int64_t>(bytes);
}

std::string SizeText(int64_t bytes) {
  static const char* const kUnits[] = {"B", "KiB", "MiB", "GiB", "TiB", "PiB", "EiB"};
  double number = static_cast<double>(bytes);
  int unit = 0;
  while (number >= 1024 && unit < 6) number /= 1024, ++unit;
  char text[32];
  std::snprintf(text, sizeof text, "%.4g %s", number, kUnits[unit]);
  return text;
}

}  // namespace pipewright
