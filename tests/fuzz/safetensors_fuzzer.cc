// Reads the header of a safetensors file: accepted or refused with an Error. An accepted one is
// valid.
#include <cstdlib>
#include <cstring>

#include "base/dtype.h"
#include "base/error.h"
#include "base/json.h"
#include "formats/weights/safetensors.h"
#include "tests/fuzz/first_checks.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace pipewright;
  std::string_view file(reinterpret_cast<const char*>(data), size);
  uint64_t length = 0;
  if (size > 8) std::memcpy(&length, data, 8);
  try {
    if (length && length <= size - 8)
      ParseJson(file.substr(8, length), "header"), ++g_passed_first_checks;
  } catch (const Error&) {
  }
  try {
    SafetensorsHeader header = ParseSafetensorsHeader(file, "file");
    uint64_t total = 0;
    for (const TensorInfo& info : header.tensors) {
      if (info.end < info.begin || info.end > size - header.data_begin) std::abort();
      if (TensorBytes(*FindDtype(info.dtype), info.shape, "t") != info.end - info.begin)
        std::abort();
      if (header.Find(info.name) != &info) std::abort();
      total += info.end - info.begin;
    }
    if (header.data_begin + total != size) std::abort();
  } catch (const Error&) {
  }
  return 0;
}
