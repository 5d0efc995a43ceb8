// Counts the coverage of the fuzz targets. GCC's -fsanitize-coverage=trace-pc calls a function in
// every basic block.
#include <cstddef>
#include <cstdint>

// Marks transitions between blocks, by a hash of both.
static uint8_t g_reached[1 << 16];
static size_t g_steps = 0;
static uintptr_t g_last = 0;

extern "C" __attribute__((no_sanitize_coverage)) void __sanitizer_cov_trace_pc() {
  const auto here = reinterpret_cast<uintptr_t>(__builtin_return_address(0));
  uint8_t& reached = g_reached[(here ^ (here >> 16) ^ (g_last >> 1)) % sizeof g_reached];
  g_last = here;
  if (reached) return;
  reached = 1, ++g_steps;
}

extern "C" __attribute__((no_sanitize_coverage)) size_t pipewright_steps_reached() {
  return g_steps;
}
