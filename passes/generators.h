// The generators behind the random operators (passes/random_ops.h).
#pragma once
#include <ATen/core/Generator.h>

#include <cstdint>
#include <map>

#include "passes/random_ops.h"

namespace pipewright {

// What is drawn for `key` in one place, told apart by `id`, begins with this.
uint64_t SeedOf(const RandomKey& key, int64_t id);

// The generator of the operation `id` for CurrentRandomKey().
at::Generator MakeGenerator(c10::Device device, int64_t id);

// From now on the ids of those that the calling thread makes go here, by seed; null: nowhere.
void NoteGenerators(std::map<uint64_t, int64_t>* ids);

}  // namespace pipewright
