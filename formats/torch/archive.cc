#include "formats/torch/archive.h"

#include <charconv>
#include <filesystem>

#include "base/error.h"

namespace pipewright {
namespace {

constexpr const char* kCure =
    "pass a file written by torch.export.save(torch.export.export(model, inputs), \"model.pt2\"), "
    "or by torch.jit.save";
constexpr const char* kDamaged = "the file is damaged: copy or export it again";

std::vector<ZipEntry> ReadDirectory(std::string_view file, const std::string& path) {
  if (!IsZip(file))
    throw Error(path, "is not an exported model: it does not start like a zip archive", kCure);
  try {
    return ReadZip(file, path, /*compressed_allowed=*/true);
  } catch (const Error& e) {
    const std::string what = e.what();
    if (what.find("no end record") != std::string::npos ||
        what.find("beyond the end") != std::string::npos)
      throw Error(path, "is cut off: the directory at the end of the zip archive is missing",
                  "copy or export the file again");
    throw;
  }
}

std::unique_ptr<MappedFile> MapModel(const std::string& path) {
  std::error_code none;
  if (std::filesystem::is_directory(path, none))
    throw Error(path, "is a folder, where a model (a file) is expected");
  auto map = std::make_unique<MappedFile>(path);
  map->ReadOn(false);
  return map;
}

}  // namespace

Archive::Archive(std::string_view file, const std::string& path) : path_(path), file_(file) {
  const std::vector<ZipEntry> entries = ReadDirectory(file, path);
  const std::string not_pytorch = "is not an archive of PyTorch: ";
  const size_t slash = entries.empty() ? std::string::npos : entries[0].name.find('/');
  if (slash == std::string::npos)
    throw Error(path, not_pytorch + "its records are not in a folder", kCure);
  const std::string folder = entries[0].name.substr(0, slash + 1);
  for (const ZipEntry& entry : entries)
    if (entry.name.starts_with(folder)) records_[entry.name.substr(slash + 1)] = entry;
  if (!Has("version") && !Has(".data/version"))
    throw Error(path, not_pytorch + "it has no record \"version\"", kCure);
}

Archive::Archive(const std::string& path) : Archive(MapModel(path)) {}

Archive::Archive(std::unique_ptr<MappedFile> map) : Archive(map->bytes(), map->path()) {
  map_ = std::move(map);
}

bool Archive::HasUnder(const std::string& folder) const {
  const auto next = records_.lower_bound(folder);
  return next != records_.end() && next->first.starts_with(folder);
}

uint64_t Archive::Version() const {
  const std::string record = Has(".data/version") ? ".data/version" : "version";
  const std::string text = Read(record);
  uint64_t version = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), version);
  if (error != std::errc() || end == text.data())
    throw Error(path_ + ": " + record, "is not a number", kDamaged);
  return version;
}

std::string Archive::Read(const std::string& record) const {
  const ZipEntry& entry = Find(record);
  if (!map_) return ReadEntry(file_, entry, path_);
  // Without the mapping, where a file that is cut off meanwhile would end the process.
  std::string stored(entry.size, '\0');
  map_->Read(entry.offset, stored.data(), entry.size);
  if (!entry.compressed) return stored;
  ZipEntry alone = entry;
  alone.offset = 0;
  return ReadEntry(stored, alone, path_);
}

uint64_t Archive::Size(const std::string& record) const {
  const ZipEntry& entry = Find(record);
  return entry.compressed ? entry.content : entry.size;
}

uint64_t Archive::Offset(const std::string& record) const {
  const ZipEntry& entry = Find(record);
  if (entry.compressed)
    throw Error(path_ + ": " + record, "is compressed", "store weights without compression");
  return entry.offset;
}

const ZipEntry& Archive::Find(const std::string& record) const {
  const auto found = records_.find(record);
  if (found == records_.end())
    throw Error(path_ + ": " + record, "is not in the archive", kDamaged);
  return found->second;
}

}  // namespace pipewright
