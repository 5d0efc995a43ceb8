// Models written in C++: torch::nn modules, traced in this process and compiled like any other.
//
//   struct NetImpl : torch::nn::Module {
//     torch::Tensor forward(torch::Tensor x) {
//       x = torch::relu(a(x));
//       pipewright::pipe_split();       // a cut
//       return b(x);
//     }
//   };
//   Net net;
//   pipewright::Model model = pipewright::Trace(net, {torch::randn({4, 8})});
//   pipewright::CompileOptions options;
//   options.output = "net.pkg";
//   pipewright::Compile(model, options);
#pragma once
#include <torch/torch.h>

#include <functional>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include "base/error.h"
#include "compiler/compile.h"
#include "passes/graph/model.h"

namespace pipewright {

// Marks a place to cut when the model is traced. Does nothing when the model runs.
void pipe_split();

struct TraceOptions {
  std::vector<std::string> inputs;  // names of forward's arguments; empty: input0, input1, ...
  // true: the model may compute with the number of samples that the example has, and is only run
  // with microbatches of as many.
  bool fixed_batch = false;
};

// Implements Trace for a call with IValues.
Model TraceCall(torch::nn::Module& module, const std::vector<at::Tensor>& inputs,
                const std::function<c10::IValue(const std::vector<at::Tensor>&)>& call,
                const TraceOptions& options = {});

namespace trace_internal {

template <class M, size_t... I>
c10::IValue CallWith(M& module, const std::vector<at::Tensor>& inputs, std::index_sequence<I...>) {
  if constexpr (requires { module.forward(inputs[I]...); }) {
    return c10::IValue(module.forward(inputs[I]...));
  } else {
    throw Error("Trace", "the module's forward does not take " + std::to_string(inputs.size()) +
                             " arguments of type torch::Tensor, one for each example input");
  }
}

template <class M>
c10::IValue Call(M& module, const std::vector<at::Tensor>& inputs) {
  switch (inputs.size()) {
    case 1:
      return CallWith(module, inputs, std::make_index_sequence<1>());
    case 2:
      return CallWith(module, inputs, std::make_index_sequence<2>());
    case 3:
      return CallWith(module, inputs, std::make_index_sequence<3>());
    case 4:
      return CallWith(module, inputs, std::make_index_sequence<4>());
    case 5:
      return CallWith(module, inputs, std::make_index_sequence<5>());
    case 6:
      return CallWith(module, inputs, std::make_index_sequence<6>());
    default:
      throw Error("Trace", "takes one to six tensors; use TraceCall for more");
  }
}

}  // namespace trace_internal

// Runs `module` (a torch::nn module, its holder or a std::shared_ptr to it) on `example_inputs` and
// records its operations. Branches and loops of C++ are recorded as executed, and so are sizes that
// the code reads (x.size(0)); write x.view({-1, n}) or x.flatten(1) to support other batch sizes.
// Runs it again, and throws Error if that records other operations or numbers: on the same inputs
// and, unless `fixed_batch`, with twice as many samples. These are the rows (first dimension) of
// the first input, and of the others that have as many. If it does not run on them, the model has a
// note that says so. Buffers and the random state are as after one run. forward takes tensors and
// returns a tensor, a tuple or a vector of them. The model shares the module's weights while the
// module lives. The name of a submodule is known if it uses a weight. Throws Error.
template <class M>
Model Trace(M& module, const std::vector<at::Tensor>& example_inputs,
            const TraceOptions& options = {}) {
  if constexpr (std::is_base_of_v<torch::nn::Module, M>) {
    return TraceCall(
        module, example_inputs,
        [&](const std::vector<at::Tensor>& inputs) { return trace_internal::Call(module, inputs); },
        options);
  } else {
    return Trace(*module, example_inputs, options);
  }
}

}  // namespace pipewright
