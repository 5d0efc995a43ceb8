// A part of safetensors.h: opens a file.
#include <algorithm>

#include "base/error.h"
#include "base/json.h"
#include "base/text.h"
#include "formats/weights/safetensors.h"

namespace pipewright {

static SafetensorsHeader ParseAlone(const MappedFile& file) {
  file.ReadOn(false);
  SafetensorsHeader header = ParseSafetensorsHeader(file.bytes(), file.path());
  file.ReadOn(true);
  return header;
}

Error NoTensor(const std::string& path, std::string_view name,
               const std::vector<std::string>& names) {
  constexpr size_t kShown = 8;
  std::vector<std::string> shown;
  for (size_t i = 0; i < std::min(kShown, names.size()); ++i) shown.push_back(Quote(names[i]));
  if (names.size() > kShown) shown.push_back("... (" + Counted(names.size(), "tensor") + ")");
  return {path, "no tensor " + Quote(name) + Suggest(name, names),
          shown.empty() ? "it has none" : "it has " + Join(shown, ", ")};
}

SafetensorsFile::SafetensorsFile(const std::string& path)
    : file_(path), header_(ParseAlone(file_)) {}

const TensorInfo& SafetensorsFile::At(std::string_view name) const {
  if (const TensorInfo* info = Find(name)) return *info;
  std::vector<std::string> names;
  for (const TensorInfo& info : header_.tensors) names.push_back(info.name);
  throw NoTensor(path(), name, names);
}

char* SafetensorsFile::MutableBytes(const TensorInfo& info) const {
  return file_.data() + header_.data_begin + info.begin;
}

std::string_view SafetensorsFile::Bytes(const TensorInfo& info) const {
  return {MutableBytes(info), info.end - info.begin};
}

void SafetensorsFile::Read(const TensorInfo& info, uint64_t offset, char* buffer,
                           uint64_t size) const {
  if (offset > info.end - info.begin || size > info.end - info.begin - offset)
    throw Error(path(), "tensor " + Quote(info.name) + ": read past its end");
  file_.Read(header_.data_begin + info.begin + offset, buffer, size);
}

TensorToWrite CopyOf(const SafetensorsFile& from, const TensorInfo& info) {
  TensorToWrite tensor{info.name, info.dtype, info.shape};
  tensor.produce = [&from, &info](const ByteSink& sink) {
    constexpr uint64_t kPiece = 1 << 20;
    uint64_t size = info.end - info.begin;
    std::string piece(std::min(kPiece, size), '\0');
    for (uint64_t at = 0; at < size; at += kPiece) {
      piece.resize(std::min(kPiece, size - at));
      from.Read(info, at, piece.data(), piece.size());
      sink(piece);
    }
  };
  return tensor;
}

}  // namespace pipewright
