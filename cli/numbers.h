// Validates numbers on the command line, with our own messages.
#pragma once
#include <cstdint>
#include <string>

namespace CLI {
class Validator;
}

namespace pipewright {

// Accept whole numbers from `least` to `most`; others are refused with messages such as `"0" is
// less than 1`. The help shows "at least 1" for AtLeast, whose upper bound only excludes nonsense,
// and "1 to 64" for InRange.
CLI::Validator AtLeast(int64_t least, int64_t most = int64_t{1} << 30);
CLI::Validator InRange(int64_t least, int64_t most);

// Do the same for decimal numbers; MoreThan excludes its bound.
CLI::Validator NumberAtLeast(double least);
CLI::Validator NumberMoreThan(double bound);
CLI::Validator NumberInRange(double least, double most);

}  // namespace pipewright
