// Reads a package's manifest: accepted or refused with an Error. An accepted one is written and
// read again, and can be cut into stages.
#include <cstdlib>

#include "base/error.h"
#include "base/json.h"
#include "formats/manifest.h"
#include "tests/fuzz/first_checks.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace pipewright;
  std::string_view text(reinterpret_cast<const char*>(data), size);
  try {
    ParseJson(text, "manifest.json");
    ++g_passed_first_checks;
    Manifest manifest = ParseManifest(text, "manifest.json");
    const std::string written = WriteManifest(manifest);
    if (WriteManifest(ParseManifest(written, "written")) != written) std::abort();
    Conf conf;
    for (size_t m = 0; m < manifest.modules.size(); ++m) {
      conf.module_to_stage.push_back(static_cast<int>(m));
      conf.stage_to_ranks.push_back({static_cast<int>(m)});
    }
    MakeStageGraph(manifest, conf);
  } catch (const Error&) {
  }
  return 0;
}
