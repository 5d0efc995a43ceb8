// The readers of text that people edit: whatever they are given, they answer or throw Error.
//   cmake -DPIPEWRIGHT_FUZZ=ON -DCMAKE_CXX_COMPILER=clang++ ... && readers_fuzzer
//   -max_total_time=60
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <string>

#include "plan/conf.h"
#include "plan/error.h"
#include "plan/json.h"
#include "plan/partition/graph_text.h"
#include "plan/partition/tarnawski.h"
#include "plan/placement/device_map.h"
#include "tests/fuzz/first_checks.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace pipewright;
  if (size == 0) return 0;
  std::string text(reinterpret_cast<const char*>(data) + 1, size - 1);
  try {
    if (data[0] % 4 == 0) {
      std::string written = WriteGraphText(ReadGraphText(text, "input"));
      ++g_passed_first_checks;
      if (WriteGraphText(ReadGraphText(written, "written")) != written) std::abort();
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
