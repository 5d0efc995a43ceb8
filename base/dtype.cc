#include "base/dtype.h"

#include "base/error.h"

namespace pipewright {

const std::vector<Dtype>& Dtypes() {
  static const std::vector<Dtype> kDtypes = {
      {"BOOL", 8, "bool"},
      {"F4", 4, "float4_e2m1fn_x2"},
      {"F6_E2M3", 6, ""},
      {"F6_E3M2", 6, ""},
      {"U8", 8, "uint8"},
      {"I8", 8, "int8"},
      {"F8_E5M2", 8, "float8_e5m2"},
      {"F8_E4M3", 8, "float8_e4m3fn"},
      {"F8_E8M0", 8, "float8_e8m0fnu"},
      {"F8_E4M3FNUZ", 8, "float8_e4m3fnuz"},
      {"F8_E5M2FNUZ", 8, "float8_e5m2fnuz"},
      {"I16", 16, "int16"},
      {"U16", 16, "uint16"},
      {"F16", 16, "float16"},
      {"BF16", 16, "bfloat16"},
      {"I32", 32, "int32"},
      {"U32", 32, "uint32"},
      {"F32", 32, "float32"},
      {"C64", 64, "complex64"},
      {"F64", 64, "float64"},
      {"I64", 64, "int64"},
      {"U64", 64, "uint64"},
  };
  return kDtypes;
}

const Dtype* FindDtype(std::string_view name) {
  if (name.substr(0, 6) == "torch.") name.remove_prefix(6);
  if (name.empty()) return nullptr;
  for (const Dtype& dtype : Dtypes())
    if (name == dtype.name || name == dtype.torch) return &dtype;
  // PyTorch's other spellings.
  static const std::pair<const char*, const char*> kAliases[] = {
      {"half", "F16"}, {"float", "F32"}, {"double", "F64"},
      {"int", "I32"},  {"long", "I64"},  {"short", "I16"}};
  for (auto [alias, of] : kAliases)
    if (name == alias) return FindDtype(of);
  return nullptr;
}

uint64_t TensorBytes(const Dtype& dtype, const std::vector<int64_t>& shape,
                     const std::string& where) {
  // Multiplies from left to right and does not look ahead for a zero, like the reference parser.
  uint64_t bits = 1;
  bool fits = true;
  for (int64_t size : shape)
    fits = fits && !__builtin_mul_overflow(bits, static_cast<uint64_t>(size), &bits);
  fits = fits && !__builtin_mul_overflow(bits, static_cast<uint64_t>(dtype.bits), &bits);
  if (!fits)
    throw Error(where, "shape " + ShapeText(shape) + " overflows 64 bits (ValidationOverflow)");
  if (bits % 8)
    throw Error(where, std::string(dtype.name) + ShapeText(shape) +
                           " is not a whole number of bytes (MisalignedSlice)");
  return bits / 8;
}

std::string ShapeText(const std::vector<int64_t>& shape) {
  std::string text = "[";
  for (size_t i = 0; i < shape.size(); ++i)
    text += (i ? ", " : "") + std::to_string(static_cast<uint64_t>(shape[i]));
  return text + "]";
}

}  // namespace pipewright
