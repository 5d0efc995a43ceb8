#include "formats/weights/tensors_to_write.h"

#include <cstring>
#include <set>

#include "base/dtype.h"
#include "base/error.h"
#include "base/json.h"

namespace pipewright {

namespace {

// Reads one tensor through its mapping, so that pages that differ early are not all touched.
bool IsFill(const Checkpoint& checkpoint, const StoredTensor& tensor) {
  const std::string_view bytes = Bytes(checkpoint, tensor);
  const size_t unit = static_cast<size_t>(std::max(FindDtype(tensor.dtype)->bits / 8, 1));
  return bytes.size() <= unit ||
         std::memcmp(bytes.data(), bytes.data() + unit, bytes.size() - unit) == 0;
}

bool MayBeTied(const TensorExtent& extent, const StoredTensor& tensor) {
  return !tensor.storage.empty() && tensor.strides.empty() && IsComplete(extent);
}

// Gives bitwise equal tensors of different files the storage of the first one.
void JoinEqual(const Checkpoint& checkpoint, WriteChoices::Equal equal,
               std::vector<TensorExtent>& extents) {
  std::map<std::pair<std::string, std::vector<int64_t>>, std::vector<size_t>> alike;
  for (size_t i = 0; i < extents.size(); ++i) {
    const StoredTensor& tensor = checkpoint.tensors[i];
    if (!MayBeTied(extents[i], tensor)) continue;
    std::vector<size_t>& others = alike[{tensor.dtype, tensor.shape}];
    bool found = false;
    for (size_t other : others) {
      const StoredTensor& first = checkpoint.tensors[other];
      if (first.file == tensor.file || Bytes(checkpoint, first) != Bytes(checkpoint, tensor) ||
          IsFill(checkpoint, tensor))
        continue;
      if (equal == WriteChoices::kRefused)
        throw Error(checkpoint.path,
                    Quote(first.name) + " and " + Quote(tensor.name) +
                        " are bitwise identical but in different files, which do not say "
                        "whether the model ties them",
                    "--equal tied writes one for both, as a strict load into a model that ties "
                    "them expects; --equal apart writes each");
      extents[i] = extents[other];
      extents[i].name = tensor.name;
      found = true;
      break;
    }
    if (!found) others.push_back(i);
  }
}

// Readers take the kept tensor for a dropped name of the same shape, so a view with its elements in
// another order (a transposed square matrix) cannot be dropped: removes it from `kept`. Throws
// Error if it would have to be made contiguous, and that is not asked for.
void WriteViewsApart(const Checkpoint& checkpoint, const WriteChoices& choices,
                     std::map<std::string, std::vector<std::string>>& kept) {
  for (auto& [name, others] : kept) {
    const StoredTensor& whole = *checkpoint.Find(name);
    std::erase_if(others, [&, &first = name](const std::string& other) {
      const StoredTensor& view = *checkpoint.Find(other);
      if (view.shape != whole.shape || view.strides == whole.strides) return false;
      if (!choices.force_contiguous)
        throw Error(checkpoint.path, Quote(other) + " is " + Quote(first) + " in another order",
                    "--force-contiguous writes both");
      return true;
    });
  }
  std::erase_if(kept, [](const auto& each) { return each.second.empty(); });
}

}  // namespace

std::vector<TensorToWrite> TensorsToWrite(const Checkpoint& checkpoint, const WriteChoices& choices,
                                          std::map<std::string, std::string>& metadata) {
  std::vector<TensorExtent> extents = Extents(checkpoint);
  if (checkpoint.files.size() > 1 && choices.equal != WriteChoices::kApart)
    JoinEqual(checkpoint, choices.equal, extents);
  auto kept = NamesToKeep(extents);
  WriteViewsApart(checkpoint, choices, kept);
  RecordDropped(kept, metadata);
  if (!metadata.empty()) metadata.insert(kPytorchFormat);
  std::set<std::string> dropped;
  for (const auto& [name, others] : kept) dropped.insert(others.begin(), others.end());
  std::vector<TensorToWrite> tensors;
  for (const StoredTensor& tensor : checkpoint.tensors) {
    if (dropped.count(tensor.name)) continue;
    if (!tensor.strides.empty() && !choices.force_contiguous)
      throw Error(checkpoint.path, "the tensor " + Quote(tensor.name) + " is not contiguous",
                  "--force-contiguous writes it as if it were");
    TensorToWrite write{tensor.name, tensor.dtype, tensor.shape};
    write.produce = [&checkpoint, &tensor](const ByteSink& sink) {
      ReadTensor(checkpoint, tensor, sink);
    };
    tensors.push_back(std::move(write));
  }
  CheckRepeats(checkpoint, choices.most_bytes);
  return tensors;
}

}  // namespace pipewright
