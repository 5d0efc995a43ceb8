// Imports models from files: any input is accepted or refused with an Error. Starts from the real
// files of tests/data/import, which torch 2.13 wrote.
//   import_fuzzer -runs=1000000 -keep-size tests/data/import/*
#include <sys/mman.h>
#include <unistd.h>

#include <cstdlib>
#include <string>

#include "base/error.h"
#include "compiler/import/import.h"
#include "formats/torch/archive.h"
#include "tests/fuzz/first_checks.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace pipewright;
  int file = memfd_create("model", MFD_CLOEXEC);
  if (file < 0 || write(file, data, size) != static_cast<ssize_t>(size)) std::abort();
  const std::string path = "/proc/self/fd/" + std::to_string(file);
  try {
    Archive archive(path);
    ++g_passed_first_checks;
    ImportModel(path);
  } catch (const Error&) {
  }
  close(file);
  return 0;
}
