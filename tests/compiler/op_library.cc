// Operators of a user: a shared library as --op-library takes it.
#include <torch/library.h>
#include <torch/torch.h>

TORCH_LIBRARY(pipewright_test, m) { m.def("twice_plus(Tensor x, float y) -> Tensor"); }
TORCH_LIBRARY_IMPL(pipewright_test, CompositeImplicitAutograd, m) {
  m.impl("twice_plus", [](const at::Tensor& x, double y) { return x * 2 + y; });
}
