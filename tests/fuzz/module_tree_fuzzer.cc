// Reads a module tree: accepted or refused with an Error. An accepted one is placed completely.
#include <cstdlib>

#include "base/error.h"
#include "plan/placement/place.h"
#include "plan/placement/tree/read_tree.h"
#include "tests/fuzz/first_checks.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace pipewright;
  std::string_view text(reinterpret_cast<const char*>(data), size);
  try {
    const Json json = ParseJson(text, "tree");
    ++g_passed_first_checks;
    ModuleTree tree = ReadModuleTree(json, "tree");
    for (const char* policy : {"auto", "balanced", "optimal"}) {
      PlaceOptions options;
      options.policy = PlacePolicyFromText(policy);
      options.budgets = ParseBudgets({"0=200,1=300,cpu=1000"});
      Placement placement = Place(tree, options);
      if (!placement.uncovered.empty() || !CheckDeviceMap(tree, placement.map).Usable())
        std::abort();
    }
  } catch (const Error&) {
  }
  return 0;
}
