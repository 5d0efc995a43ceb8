// Arithmetic of NCCL's types, one element after the other.
#pragma once
#include <cstddef>

namespace fake_nccl {

// Returns the bytes of an element of an NcclType, or 0 if there is no such type.
size_t BytesOfType(int type);

// into[i] = into[i] OPERATION from[i], rounded to the type. Averages are added.
void Combine(void* into, const void* from, size_t count, int type, int operation);

// into[i] /= ranks.
void Divide(void* into, size_t count, int type, int ranks);

}  // namespace fake_nccl
