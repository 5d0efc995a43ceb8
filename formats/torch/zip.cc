// PKWARE APPNOTE 6.3.9: end of central directory (4.3.16), its zip64 forms (4.3.14, 4.3.15),
// central directory header (4.3.12), local file header (4.3.7), zip64 extra field (4.5.3).
#include "formats/torch/zip.h"

#include <algorithm>
#include <set>

#include "base/error.h"
#include "base/json.h"
#include "formats/torch/inflate.h"

namespace pipewright {
namespace {

constexpr std::string_view kEnd = "PK\5\6", kEnd64 = "PK\6\6", kLocator = "PK\6\7",
                           kCentral = "PK\1\2", kLocal = "PK\3\4";

struct ZipFile {
  std::string_view file;
  const std::string& path;

  [[noreturn]] void Fail(const std::string& what) const { throw Error(path, "zip: " + what); }
  std::string_view Bytes(uint64_t at, uint64_t size) const {
    if (at > file.size() || size > file.size() - at) Fail("a range beyond the end of the file");
    return file.substr(at, size);
  }
  uint64_t Number(uint64_t at, int bytes) const {
    std::string_view text = Bytes(at, static_cast<uint64_t>(bytes));
    uint64_t n = 0;
    for (int i = bytes - 1; i >= 0; --i) n = n << 8 | static_cast<unsigned char>(text[i]);
    return n;
  }
  void Expect(uint64_t at, std::string_view signature, const char* of) const {
    if (Bytes(at, 4) != signature) Fail(std::string("no ") + of + " where one is announced");
  }
};

struct Directory {
  uint64_t offset = 0, size = 0, entries = 0;
};

Directory FindDirectory(const ZipFile& zip) {
  // Only a comment of at most 65,535 bytes can follow the end record.
  if (zip.file.size() < 22) zip.Fail("too short");
  size_t lowest = zip.file.size() - std::min<size_t>(zip.file.size(), 22 + 65535);
  size_t end = zip.file.rfind(kEnd, zip.file.size() - 22);
  if (end == std::string_view::npos || end < lowest) zip.Fail("no end record");
  Directory found{zip.Number(end + 16, 4), zip.Number(end + 12, 4), zip.Number(end + 10, 2)};
  if (end >= 20 && zip.Bytes(end - 20, 4) == kLocator) {
    uint64_t at = zip.Number(end - 20 + 8, 8);
    zip.Expect(at, kEnd64, "zip64 end record");
    found = {zip.Number(at + 48, 8), zip.Number(at + 40, 8), zip.Number(at + 32, 8)};
  }
  return found;
}

// Reads the sizes and offset that do not fit 32 bits from an extra field, which has them in order.
void ReadZip64(const ZipFile& zip, uint64_t at, uint64_t size, uint64_t (&fields)[3]) {
  uint64_t end = at + size;
  while (at + 4 <= end) {
    uint64_t id = zip.Number(at, 2), length = zip.Number(at + 2, 2);
    uint64_t field = at + 4, last = std::min(end, field + length);
    if (id == 1)
      for (uint64_t& value : fields) {
        if (value != 0xffffffff) continue;
        if (last < field + 8) zip.Fail("a zip64 field is too short");
        value = zip.Number(field, 8);
        field += 8;
      }
    at += 4 + length;
  }
}

}  // namespace

bool IsZip(std::string_view file) { return file.substr(0, 4) == kLocal; }

std::vector<ZipEntry> ReadZip(std::string_view file, const std::string& path,
                              bool compressed_allowed) {
  ZipFile zip{file, path};
  Directory directory = FindDirectory(zip);
  zip.Bytes(directory.offset, directory.size);
  std::vector<ZipEntry> entries;
  std::set<std::string> names;
  uint64_t at = directory.offset;
  for (uint64_t i = 0; i < directory.entries; ++i) {
    zip.Expect(at, kCentral, "directory entry");
    uint64_t name_size = zip.Number(at + 28, 2), extra_size = zip.Number(at + 30, 2);
    std::string name(zip.Bytes(at + 46, name_size));
    uint64_t fields[3] = {zip.Number(at + 24, 4), zip.Number(at + 20, 4), zip.Number(at + 42, 4)};
    ReadZip64(zip, at + 46 + name_size, extra_size, fields);
    auto [size, stored, local] = fields;
    const uint64_t method = zip.Number(at + 10, 2);
    if (method != 0 && method != 8)
      zip.Fail("the entry " + Quote(name) + " is compressed in an unknown way");
    if ((method != 0 && !compressed_allowed) || (method == 0 && size != stored))
      zip.Fail("the entry " + Quote(name) + " is compressed");
    if (zip.Number(at + 8, 2) & 1) zip.Fail("the entry " + Quote(name) + " is encrypted");
    if (!names.insert(name).second) zip.Fail("the entry " + Quote(name) + " appears twice");
    zip.Expect(local, kLocal, "entry");
    uint64_t content = local + 30 + zip.Number(local + 26, 2) + zip.Number(local + 28, 2);
    zip.Bytes(content, stored);
    entries.push_back({name, content, stored, method != 0, size});
    at += 46 + name_size + extra_size + zip.Number(at + 32, 2);
  }
  return entries;
}

std::string ReadEntry(std::string_view file, const ZipEntry& entry, const std::string& path) {
  const std::string_view bytes = file.substr(entry.offset, entry.size);
  if (!entry.compressed) return std::string(bytes);
  const std::string where = path + ": " + entry.name;
  if (entry.content > uint64_t{256} << 20)
    throw Error(where, "is compressed and larger than 256 MiB", "save it without compression");
  return Inflate(bytes, entry.content, where);
}

}  // namespace pipewright
