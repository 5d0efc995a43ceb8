// Reads the directory of a zip archive: accepted or refused with an Error. Accepted entries lie in
// the file. model_tree_fuzzer and import_fuzzer read such archives.
#include <cstdlib>

#include "base/error.h"
#include "formats/torch/zip.h"
#include "tests/fuzz/first_checks.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace pipewright;
  std::string_view file(reinterpret_cast<const char*>(data), size);
  try {
    for (const ZipEntry& entry : ReadZip(file, "file", /*compressed_allowed=*/true)) {
      if (entry.offset > size || entry.size > size - entry.offset) std::abort();
      if (entry.content < uint64_t{1} << 20) try {
          ReadEntry(file, entry, "file");
        } catch (const Error&) {
        }
    }
    ++g_passed_first_checks;
  } catch (const Error&) {
  }
  return 0;
}
