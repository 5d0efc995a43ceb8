// Reads state dicts of torch.save: accepted or refused with an Error. Accepted tensors lie in the
// file.
#include <cstdlib>

#include "base/error.h"
#include "formats/torch/torch_file.h"
#include "formats/torch/zip.h"
#include "tests/fuzz/first_checks.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace pipewright;
  std::string_view file(reinterpret_cast<const char*>(data), size);
  try {
    if (IsZip(file)) ReadZip(file, "file", /*compressed_allowed=*/true);
    g_passed_first_checks += IsTorchFile(file);
    for (const StoredTensor& tensor : ReadTorchFile(file, "file")) {
      if (tensor.storage_offset + tensor.storage_bytes > size) std::abort();
      if (tensor.bytes == 0 || !tensor.strides.empty()) continue;
      if (tensor.offset < tensor.storage_offset ||
          tensor.offset + tensor.bytes > tensor.storage_offset + tensor.storage_bytes)
        std::abort();
    }
  } catch (const Error&) {
  }
  return 0;
}
