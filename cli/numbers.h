// Checks of numbers on the command line, with messages in our own words.
#pragma once
#include <cstdint>
#include <string>

namespace CLI {
class Validator;
}

namespace pipewright {

// Accept whole numbers from `least` to `most`. Others are refused with `"0" is less than 1` and the
// like. The help shows "at least 1" for AtLeast, whose upper bound only keeps nonsense out, and "1
// to 64" for InRange.
CLI::Validator AtLeast(int64_t least, int64_t most = int64_t{1} << 30);
CLI::Validator InRange(int64_t least, int64_t most);

// The same for decimal numbers; MoreThan leaves its bound out.
CLI::Validator NumberAtLeast(double least);
CLI::Validator NumberMoreThan(double bound);
CLI::Validator NumberInRange(double least, double most);

}  // namespace pipewright
