// Sizes of every value for one microbatch, known before the first one flows.
#pragma once
#include <ATen/core/Tensor.h>

#include <list>
#include <memory>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

#include "plan/manifest.h"

namespace pipewright {

struct TensorSpec {
  at::ScalarType type = at::kFloat;  // scalars travel as int64, float64 or bool of no dimension
  std::vector<int64_t> sizes;
  bool known = true;  // false: the sizes depend on the data
  int64_t bytes() const;
};

// By value id. `inputs`: one for each input of the model, in order. Sizes come from the manifest's
// expressions; a module whose code was edited, and one that takes values which an edited one
// changed, is run once on zeros instead; where one fails on those, all run once on the package's
// samples or on made-up numbers, with the package's weights. Throws Error for inputs that the model
// was not exported for and for modules that fail there too. Sizes that depend on the data are not
// known.
std::vector<TensorSpec> InferShapes(const std::string& package, const Manifest& manifest,
                                    const std::vector<TensorSpec>& inputs);

// The same, remembered for the last `capacity` different inputs.
class ShapeCache {
 public:
  ShapeCache(std::string package, const Manifest& manifest, size_t capacity = 1024)
      : package_(std::move(package)), manifest_(manifest), capacity_(capacity) {}

  std::shared_ptr<const std::vector<TensorSpec>> Of(const std::vector<TensorSpec>& inputs);
  size_t size() const { return entries_.size(); }

 private:
  using Entry = std::pair<std::string, std::shared_ptr<const std::vector<TensorSpec>>>;
  const std::string package_;
  const Manifest& manifest_;
  const size_t capacity_;
  std::list<Entry> entries_;  // by the inputs as text; the last used first
  std::unordered_map<std::string, std::list<Entry>::iterator> found_;
};

}  // namespace pipewright
