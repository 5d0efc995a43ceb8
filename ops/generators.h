// Makes the generators behind the random operators (ops/random_ops.h).
#pragma once
#include <ATen/core/Generator.h>

#include <cstdint>
#include <map>

#include "ops/random_ops.h"

namespace pipewright {

// Returns the seed of the draws for `key` in the operation `id`.
uint64_t SeedOf(const RandomKey& key, int64_t id);

// Returns the generator of operation `id` for CurrentRandomKey().
at::Generator MakeGenerator(c10::Device device, int64_t id);

// Starts recording the ids of generators that this thread makes in `ids`, by seed; null stops the
// recording.
void NoteGenerators(std::map<uint64_t, int64_t>* ids);

}  // namespace pipewright
