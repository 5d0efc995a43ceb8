// A part of safetensors.h: writes a file.
#include <algorithm>
#include <utility>

#include "base/dtype.h"
#include "base/error.h"
#include "base/files/atomic_file.h"
#include "base/json.h"
#include "formats/weights/safetensors.h"

namespace pipewright {

// Returns the sort key of a tensor in the file. Dtypes() is in order of width, narrowest first.
static std::pair<const Dtype*, std::string_view> Order(const TensorToWrite& tensor) {
  const Dtype* last = &Dtypes().back();
  return {last - (FindDtype(tensor.dtype) - &Dtypes().front()), tensor.name};
}

void SortAsWritten(std::vector<TensorToWrite>& tensors) {
  std::sort(tensors.begin(), tensors.end(),
            [](const TensorToWrite& a, const TensorToWrite& b) { return Order(a) < Order(b); });
}

static std::string HeaderText(const std::vector<TensorToWrite>& tensors,
                              const std::vector<uint64_t>& sizes,
                              const std::map<std::string, std::string>& metadata,
                              const std::string& path) {
  Json header = Json::object();
  if (!metadata.empty()) header["__metadata__"] = metadata;
  // Writes text directly, because building an ordered_json of many entries takes quadratic time.
  std::string text = metadata.empty() ? "{" : header.dump();
  if (!metadata.empty()) text.back() = ',';
  uint64_t at = 0;
  for (size_t i = 0; i < tensors.size(); ++i) {
    std::string shape;
    for (int64_t size : tensors[i].shape)
      shape.append(shape.empty() ? "" : ",").append(std::to_string(static_cast<uint64_t>(size)));
    text += Quote(tensors[i].name) + ":{\"dtype\":\"" + tensors[i].dtype + "\",\"shape\":[" +
            shape + "],\"data_offsets\":[" + std::to_string(at) + "," +
            std::to_string(at + sizes[i]) + "]},";
    at += sizes[i];
  }
  if (text.back() == ',')
    text.back() = '}';
  else
    text += '}';
  text.resize((text.size() + 8 + 63) / 64 * 64 - 8, ' ');
  if (text.size() > 100'000'000) throw Error(path, "its header would exceed 100,000,000 bytes");
  return text;
}

void WriteSafetensors(const std::string& path, std::vector<TensorToWrite> tensors,
                      const std::map<std::string, std::string>& metadata) {
  for (TensorToWrite& tensor : tensors) {
    const Dtype* dtype = FindDtype(tensor.dtype);
    if (!dtype)
      throw Error(path, "tensor " + Quote(tensor.name) + ": dtype \"" + tensor.dtype +
                            "\" has no place in a safetensors file");
    tensor.dtype = dtype->name;
    if (!IsUtf8(tensor.name))
      throw Error(path, "tensor " + Quote(tensor.name) + ": its name is not UTF-8");
    if (tensor.name == "__metadata__")
      throw Error(path, "a tensor cannot be named \"__metadata__\"");
  }
  SortAsWritten(tensors);
  std::vector<std::string_view> names;
  std::vector<uint64_t> sizes;
  for (const TensorToWrite& tensor : tensors) {
    names.push_back(tensor.name);
    sizes.push_back(TensorBytes(*FindDtype(tensor.dtype), tensor.shape,
                                path + ": tensor " + Quote(tensor.name)));
  }
  std::sort(names.begin(), names.end());
  auto twice = std::adjacent_find(names.begin(), names.end());
  if (twice != names.end()) throw Error(path, "two tensors are named " + Quote(*twice));

  std::string header = HeaderText(tensors, sizes, metadata, path);
  std::string length(8, '\0');
  for (int i = 0; i < 8; ++i) length[i] = static_cast<char>(header.size() >> 8 * i);
  AtomicFile file(path);
  file.Write(length + header);
  for (size_t i = 0; i < tensors.size(); ++i) {
    uint64_t written = 0;
    ByteSink sink = [&](std::string_view bytes) {
      written += bytes.size();
      if (written <= sizes[i]) file.Write(bytes);
    };
    if (tensors[i].produce)
      tensors[i].produce(sink);
    else
      sink(tensors[i].bytes);
    if (written != sizes[i])
      throw Error(path, "tensor " + Quote(tensors[i].name) + ": " + std::to_string(written) +
                            " bytes were given, its shape takes " + std::to_string(sizes[i]));
  }
  file.Commit();
}

}  // namespace pipewright
