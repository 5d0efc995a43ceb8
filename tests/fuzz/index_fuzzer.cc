// Reads the index of a sharded checkpoint: no accepted shard is outside the folder.
#include <cstdlib>

#include "base/error.h"
#include "base/json.h"
#include "formats/weights/shard_index.h"
#include "tests/fuzz/first_checks.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace pipewright;
  std::string_view text(reinterpret_cast<const char*>(data), size);
  try {
    ParseJson(text, "index");
    ++g_passed_first_checks;
    for (const auto& [name, shard] : ParseShardIndex(text, "index").shard_of)
      if (shard.empty() || shard[0] == '/' || shard.substr(0, 2) == "..") std::abort();
  } catch (const Error&) {
  }
  return 0;
}
