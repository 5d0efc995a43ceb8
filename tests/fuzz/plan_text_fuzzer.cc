// libFuzzer target: any text is either refused with an Error or written back byte for byte, and an
// accepted plan can be validated and lowered with no failure other than an Error.
//   cmake -S . -B build-fuzz -DPIPEWRIGHT_TORCH=OFF -DPIPEWRIGHT_FUZZ=ON
//       -DCMAKE_CXX_COMPILER=clang++
//   cmake --build build-fuzz --target plan_text_fuzzer
//   build-fuzz/tests/plan_text_fuzzer CORPUS tests/data/schedules tests/golden/plan
#include <cstdint>
#include <cstdlib>
#include <string_view>

#include "base/error.h"
#include "plan/lowering/lower.h"
#include "plan/lowering/validate.h"
#include "plan/plan_text.h"
#include "plan/stage_graph.h"
#include "tests/fuzz/first_checks.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace pipewright;
  std::string_view text(reinterpret_cast<const char*>(data), size);
  Plan plan;
  try {
    plan = ReadPlan(text, "plan.csv");
  } catch (const Error&) {
    return 0;
  }
  ++g_passed_first_checks;
  if (WritePlan(plan) != text) std::abort();
  try {
    Validate(plan);
  } catch (const Error&) {
  }
  StageGraph graph;
  try {
    graph = GraphOf(plan);
    ValidateSchedule(plan, graph);
  } catch (const Error&) {
    return 0;
  }
  // A schedule that can finish can be lowered, and then it is valid.
  Validate(Lower(plan, graph), graph);
  return 0;
}
