// Reads the MPI options from the environment of the ranks.
#include <cstdlib>
#include <string>

#include "base/text.h"
#include "runtime/transport/mpi_transport.h"

namespace pipewright {

// Returns true if the user's OMPI_MCA_btl excludes shared memory.
static bool WithoutSharedMemory() {
  const char* text = std::getenv("OMPI_MCA_btl");
  if (!text || !*text) return false;
  const bool excludes = *text == '^';
  for (const std::string& name : Split(excludes ? text + 1 : text, ','))
    if (name == "vader" || name == "sm") return excludes;
  return !excludes;
}

MpiOptions MpiOptionsFromEnvironment() {
  MpiOptions options;
  auto number = [](const char* name, size_t otherwise) {
    const char* text = std::getenv(name);
    return text && *text ? std::strtoull(text, nullptr, 10) : otherwise;
  };
  options.background_progress = number("PIPEWRIGHT_MPI_THREAD", options.background_progress);
  options.inbox = number("PIPEWRIGHT_MPI_INBOX", !WithoutSharedMemory());
  options.piece_bytes = number("PIPEWRIGHT_MPI_PIECE", options.piece_bytes);
  return options;
}

}  // namespace pipewright
