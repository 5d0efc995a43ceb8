// Calls the readers of text that people edit: they accept any input or throw Error.
//   cmake -DPIPEWRIGHT_FUZZ=ON -DCMAKE_CXX_COMPILER=clang++ ...
//   readers_fuzzer -max_total_time=60
#include <cctype>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <string>

#include "base/error.h"
#include "base/json.h"
#include "formats/conf.h"
#include "formats/graph_text.h"
#include "plan/partition/pipedream/codegen/codegen.h"
#include "plan/partition/pipedream/codegen/torch_text.h"
#include "plan/partition/pipedream/tarnawski.h"
#include "plan/placement/device_map.h"
#include "tests/fuzz/first_checks.h"

// Checks that the code written for a description only calls layers, torch.Size and float.
static void CheckLayer(const std::string& description) {
  using namespace pipewright;
  std::string call;
  try {
    call = DeclareModule({description, "input", "node", 1, 1}).declaration;
  } catch (const Error&) {
    return;
  }
  char quote = 0;
  std::string word;
  for (size_t i = 0; i < call.size(); ++i) {
    const char c = call[i];
    if (c < ' ' || c > '~') std::abort();
    if (quote) {
      if (c == '\\')
        ++i;
      else if (c == quote)
        quote = 0;
      continue;
    }
    if (c == '\'' || c == '"') quote = c;
    if (c == '(' && !word.empty() && word != "float" && (word[0] < 'A' || word[0] > 'Z'))
      std::abort();
    const bool in_word = std::isalnum(static_cast<unsigned char>(c)) || c == '_';
    word = in_word ? word + c : "";
  }
  if (quote) std::abort();
}

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace pipewright;
  if (size == 0) return 0;
  std::string text(reinterpret_cast<const char*>(data) + 1, size - 1);
  try {
    if (data[0] % 4 == 0) {
      ModelGraph graph = ReadGraphText(text, "input");
      std::string written = WriteGraphText(graph);
      ++g_passed_first_checks;
      if (WriteGraphText(ReadGraphText(written, "written")) != written) std::abort();
      for (const GraphNode& node : graph.nodes) CheckLayer(node.description);
      CodegenOptions options;
      options.name = "Net", options.arch = "net";
      GenerateCode(graph, options, "input");
      return 0;
    }
    const Json json = ParseJson(text, "input");
    ++g_passed_first_checks;
    if (data[0] % 4 == 1) {
      Conf conf = ParseConf(text, "input");
      if (ParseConf(WriteConf(conf), "written") != conf) std::abort();
    } else if (data[0] % 4 == 3) {
      DeviceMap map = ReadDeviceMap(json, "input");
      if (ReadDeviceMap(DeviceMapJson(map), "written") != map) std::abort();
    } else {
      ReadTarnawski(json, "input");
    }
  } catch (const Error&) {
  }
  return 0;
}
