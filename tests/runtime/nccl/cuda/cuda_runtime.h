// Declares what nccl.h needs of CUDA, so that declarations.cc compiles without a toolkit.
#pragma once
#include <stddef.h>

typedef struct CUstream_st* cudaStream_t;
