// Fast mode divides its effort by these shares. Each part has at most its share of the ticks that
// there are at the start, and no more than are left: parts that come first are served first, and
// those that end sooner leave the rest to the ones after them. So shares need not add up to 1.
#pragma once

namespace pipewright::share {

// In the order of the search, over all units.
inline constexpr double kTied = 0.6;   // all of the search over tied units, which is one like this
inline constexpr double kFill = 0.2;   // stages filled one after the other,
inline constexpr double kPack = 0.8;   // else packed in any order,
inline constexpr double kWide = 0.25;  // else filled, more fillings being kept, each time;
inline constexpr double kClose = 0.15;  // filled closer to the bound than 1 %, each time
inline constexpr double kLevels = 0.4;  // partitions from coarser graphs, each
inline constexpr double kExact = 0.3;   // the exact search of a narrow graph
inline constexpr double kLast = 0.22;   // kept for what comes after orders and coarser graphs:
inline constexpr double kFit = 0.3;     // moves until stages fit their memory, where none did;
inline constexpr double kBalance = 0.02;  // moves and exchanges between stages, each time
inline constexpr double kNearby = 0.15;   // exact searches near the cuts, each

// These are shares of what is left, where devices are unequal.
inline constexpr double kPackUneven = 0.65;  // stages packed on the devices as they are
inline constexpr double kEqual = 0.45;       // the search on devices as fast as they are on average
inline constexpr double kFirstTurn = 0.7;    // searches with the devices in an order: the first
inline constexpr double kOtherTurn = 0.5;    // and each other

}  // namespace pipewright::share
