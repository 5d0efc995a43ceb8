#include "runtime/recorded/graph.h"

namespace pipewright {

Geometry Geometry::Of(const at::Tensor& tensor) {
  return {tensor.sizes().vec(), tensor.strides().vec(), tensor.scalar_type(), tensor.key_set(),
          tensor.unsafeGetTensorImpl()->is_wrapped_number()};
}

bool Geometry::Fits(const at::Tensor& tensor) const {
  return tensor.scalar_type() == type && tensor.key_set() == keys && tensor.sizes() == sizes &&
         tensor.strides() == strides && tensor.unsafeGetTensorImpl()->is_wrapped_number() == number;
}

}  // namespace pipewright
