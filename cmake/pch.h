// The precompiled header for all files that include torch. Without torch/torch.h, which would cost
// each file two seconds, since GCC instantiates templates of a precompiled header in every file.
#pragma once
#include <ATen/ATen.h>
#include <torch/csrc/jit/api/module.h>
#include <torch/csrc/jit/ir/ir.h>
#include <torch/csrc/jit/runtime/interpreter.h>
#include <torch/csrc/jit/runtime/operator.h>

#include <nlohmann/json.hpp>
