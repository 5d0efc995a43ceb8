#include "formats/data/npy.h"

#include <map>

#include "base/dtype.h"
#include "base/error.h"

namespace pipewright {

namespace {

// Returns the text of VALUE in the header's Python dictionary, 'key': VALUE; "" if absent.
std::string_view Value(std::string_view header, const std::string& key) {
  size_t at = header.find("'" + key + "'");
  if (at == std::string_view::npos) return {};
  at = header.find(':', at);
  if (at == std::string_view::npos) return {};
  std::string_view rest = header.substr(at + 1);
  rest.remove_prefix(std::min(rest.find_first_not_of(' '), rest.size()));
  size_t end = rest.empty()      ? 0
               : rest[0] == '('  ? rest.find(')') + 1
               : rest[0] == '\'' ? rest.find('\'', 1) + 1
                                 : rest.find_first_of(",}");
  return rest.substr(0, end);
}

const std::map<std::string, std::string> kTypes = {
    {"|b1", "bool"},    {"|u1", "uint8"},  {"|i1", "int8"},    {"<i2", "int16"},
    {"<i4", "int32"},   {"<i8", "int64"},  {"<f2", "float16"}, {"<f4", "float32"},
    {"<f8", "float64"}, {"<u2", "uint16"}, {"<u4", "uint32"},  {"<u8", "uint64"},
};

}  // namespace

NpyHeader ParseNpyHeader(std::string_view file, const std::string& path) {
  if (file.size() < 12 || file.substr(0, 6) != "\x93NUMPY") throw Error(path, "is not a .npy file");
  auto byte = [&](size_t i) { return static_cast<uint64_t>(static_cast<unsigned char>(file[i])); };
  int version = static_cast<int>(byte(6));
  if (version < 1 || version > 3)
    throw Error(path, "is a .npy file of version " + std::to_string(version) +
                          "; versions 1 to 3 are supported");
  uint64_t length = byte(8) | byte(9) << 8, begin = 10;
  if (version > 1) length |= byte(10) << 16 | byte(11) << 24, begin = 12;
  if (length > file.size() - begin) throw Error(path, "ends within its header");
  std::string_view header = file.substr(begin, length);

  NpyHeader npy;
  npy.data_begin = begin + length;
  std::string_view descr = Value(header, "descr"), shape = Value(header, "shape");
  if (descr.size() < 2 || shape.size() < 2 || shape[0] != '(')
    throw Error(path, "its header lacks \"descr\" or \"shape\"");
  auto type = kTypes.find(std::string(descr.substr(1, descr.size() - 2)));
  if (descr[0] != '\'' || type == kTypes.end())
    throw Error(path, "holds elements of the type " + std::string(descr),
                "use a little-endian type that torch has, as astype(\"float32\") does");
  npy.dtype = type->second;
  if (Value(header, "fortran_order") != "False")
    throw Error(path, "is in Fortran order", "numpy.ascontiguousarray(...) before saving");
  std::string digits;
  for (char c : shape) {
    if (c >= '0' && c <= '9') {
      digits += c;
    } else if (!digits.empty()) {
      if (digits.size() > 18) throw Error(path, "has the shape " + std::string(shape));
      npy.shape.push_back(std::stoll(digits));
      digits.clear();
    }
  }
  uint64_t bytes = TensorBytes(*FindDtype(npy.dtype), npy.shape, path);
  if (file.size() - npy.data_begin != bytes)
    throw Error(path, "holds " + std::to_string(file.size() - npy.data_begin) +
                          " bytes of data, its shape takes " + std::to_string(bytes));
  return npy;
}

}  // namespace pipewright
