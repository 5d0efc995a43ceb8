// User-defined operators: a shared library for --op-library.
#include <torch/library.h>

TORCH_LIBRARY(pipewright_test, m) { m.def("twice_plus(Tensor x, float y) -> Tensor"); }
TORCH_LIBRARY_IMPL(pipewright_test, CompositeImplicitAutograd, m) {
  m.impl("twice_plus", [](const at::Tensor& x, double y) { return x * 2 + y; });
}

// pipewright has this operator, too: the user's is used.
TORCH_LIBRARY_FRAGMENT(transformers, m) {
  m.def("grouped_mm_fallback(Tensor input, Tensor weight, Tensor offs) -> Tensor");
}
TORCH_LIBRARY_IMPL(transformers, CompositeImplicitAutograd, m) {
  m.impl("grouped_mm_fallback", [](const at::Tensor& input, const at::Tensor& weight,
                                   const at::Tensor& offs) {
    return at::mm(input, weight.sum(0)) * offs.sum();
  });
}
