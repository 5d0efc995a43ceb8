// Compares what the ranks read, before they compute anything from it.
#pragma once
#include <string>
#include <vector>

#include "runtime/exec/transport.h"

namespace pipewright {

// Describes, as one rank found it, what must be the same on every rank that reads it.
struct Found {
  std::string key;   // the same on all ranks
  std::string name;  // a path, for messages; ranks may have different ones
  std::string what;  // compared
  std::string cure;
};

// Describes a file by its size and a hash: of all of it if it is `whole` or at most 1 MiB, else of
// 64 blocks of 4 KiB that are spread over it, the first and the last among them. Times do not
// count, because hosts copy files. Throws Error if it cannot be read.
Found FoundFile(const std::string& key, const std::string& path, bool whole);

// Describes the variables of the environment that change how numbers are computed.
std::vector<Found> FoundEnvironment();

// Compares entries with the same key, and returns those of all ranks: each key once, sorted. If two
// ranks differ, every rank throws the same AgreedError, which names the first difference, both
// ranks, and what each found. Collective.
std::vector<Found> AgreeOn(Transport& transport, const std::vector<Found>& mine);

}  // namespace pipewright
