// Weights from where the model has them into a module's file.
#pragma once
#include <memory>
#include <string>
#include <vector>

#include "compiler/archive/archive.h"
#include "formats/weights/safetensors.h"
#include "passes/split/bodies.h"

namespace pipewright {

// The files of the model, opened once.
class WeightReader {
 public:
  explicit WeightReader(const Model& model);
  // Hands the weight's elements in row-major order and in its dtype to `sink`, piece by piece;
  // one that is not contiguous where it lies is made so in memory first.
  void Read(const Weight& weight, const ByteSink& sink) const;

 private:
  std::vector<std::unique_ptr<FileReader>> files_;
};

// One safetensors file with what the module holds. Throws Error.
void WriteWeights(const Model& model, const ModuleBody& body, const WeightReader& reader,
                  const std::string& path);

}  // namespace pipewright
