// The precompiled header for all files that include torch. It does not have torch/torch.h: each file
// would take two seconds more, since GCC instantiates the templates of a precompiled header again.
#pragma once
#include <ATen/ATen.h>
#include <torch/csrc/jit/api/module.h>
#include <torch/csrc/jit/ir/ir.h>
#include <torch/csrc/jit/runtime/interpreter.h>
#include <torch/csrc/jit/runtime/operator.h>

#include <nlohmann/json.hpp>
