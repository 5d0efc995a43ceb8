// The directory of a zip archive, and the JSON in it: accepted or refused with an Error, and what
// is accepted lies in the file. Starts from real model files; the torch half of import is
// import_fuzzer.
#include <cstdio>
#include <cstdlib>

#include "plan/error.h"
#include "plan/placement/export_tree.h"
#include "plan/placement/script_tree.h"
#include "plan/weights/zip.h"

namespace {

struct Count {
  long all = 0, passed = 0;
  ~Count() { std::printf("%ld of %ld inputs have a directory\n", passed, all); }
} count;

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace pipewright;
  std::string_view file(reinterpret_cast<const char*>(data), size);
  ++count.all;
  try {
    for (const ZipEntry& entry : ReadZip(file, "file", /*compressed_allowed=*/true)) {
      if (entry.offset > size || entry.size > size - entry.offset) std::abort();
      if (entry.content < uint64_t{1} << 20) try {
          ReadEntry(file, entry, "file");
        } catch (const Error&) {
        }
    }
    ++count.passed;
    if (IsExport(file)) TreeOfExport(file, "file");
    if (IsScript(file)) TreeOfScript(file, "file");
  } catch (const Error&) {
  }
  return 0;
}
