// Copies weights from the model's files to a module's file.
#pragma once
#include <memory>
#include <string>
#include <vector>

#include "base/files/mapped_file.h"
#include "formats/weights/safetensors.h"
#include "passes/split/bodies.h"

namespace pipewright {

// Reads weights from the files of the model, which it opens once.
class WeightReader {
 public:
  explicit WeightReader(const Model& model);
  // Passes the weight's elements in row-major order and in its dtype to `sink`, piece by piece.
  // Makes a weight that is not contiguous in its file contiguous in memory first.
  void Read(const Weight& weight, const ByteSink& sink) const;

 private:
  std::vector<std::unique_ptr<MappedFile>> files_;
};

// Writes one safetensors file with the weights that the module holds. Throws Error.
void WriteWeights(const Model& model, const ModuleBody& body, const WeightReader& reader,
                  const std::string& path);

}  // namespace pipewright
