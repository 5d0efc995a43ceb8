// Replaces CUDA's header: nccl.h uses none of its types.
#pragma once
