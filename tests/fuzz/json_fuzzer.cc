// Reads JSON: accepted or refused with an Error. Accepted JSON is the same after it is written and
// read again, and every place in it is found.
#include <cstdlib>

#include "base/error.h"
#include "base/json.h"
#include "tests/fuzz/first_checks.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace pipewright;
  std::string_view text(reinterpret_cast<const char*>(data), size);
  try {
    const Json json = ParseJson(text, "input");
    ++g_passed_first_checks;
    if (ParseJson(FormatJson(json), "written") != json) std::abort();
    if (ParseSortedJson(text, "input").size() != json.size()) std::abort();
    std::vector<std::string> path;
    for (const Json* at = &json; at->is_structured() && !at->empty(); at = &at->back())
      path.push_back(at->is_array() ? std::to_string(at->size() - 1) : (--at->end()).key());
    JsonPosition(text, path);
  } catch (const Error&) {
  }
  return 0;
}
