// Infers the sizes of every value for one microbatch, before the first one runs.
#pragma once
#include <ATen/core/Tensor.h>

#include <list>
#include <memory>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

#include "formats/manifest.h"
#include "runtime/trial/trial.h"

namespace pipewright {

struct TensorSpec {
  at::ScalarType type = at::kFloat;  // scalars travel as int64, float64 or bool without dimensions
  std::vector<int64_t> sizes;
  bool known = true;  // false: sizes depend on the data
  int64_t bytes() const;
};

// Returns the specs by value id. `inputs` has one entry per input of the model, in order. Sizes
// come from the manifest's expressions. A module whose code was edited, or whose inputs an edited
// one changed, is run once on zeros instead; if it fails on those, all modules run once on the
// package's samples or on generated numbers, with the package's weights. Throws Error for inputs
// that the model was not exported for and for modules that fail there too. Sizes that depend on the
// data are marked unknown.
std::vector<TensorSpec> InferShapes(const std::string& package, const Manifest& manifest,
                                    const std::vector<TensorSpec>& inputs);

// Does the same and calls `observe` for edited modules, and again for all of them if zeros failed.
std::vector<TensorSpec> InferShapesAndObserve(const std::string& package, const Manifest& manifest,
                                              const std::vector<TensorSpec>& inputs,
                                              const EditObserver& observe);

// Returns a message for each value that edited code returns in another type or size than the
// manifest says: "PKG/modules/module2.py:15: returns y float32 [12], manifest.json says
// float32 [n, 3]", with a cure on a second line. Throws the same errors.
std::vector<std::string> ChangedOutputs(const std::string& package, const Manifest& manifest,
                                        const std::vector<TensorSpec>& inputs);

// Does the same as InferShapes and caches the results of the last `capacity` different inputs.
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
  std::list<Entry> entries_;  // keyed by the inputs as text; the most recently used first
  std::unordered_map<std::string, std::list<Entry>::iterator> found_;
};

}  // namespace pipewright
