#include "tensors/dtype.h"

#include "base/dtype.h"
#include "base/error.h"

namespace pipewright {

namespace {

constexpr std::pair<at::ScalarType, const char*> kTypes[] = {
    {at::kFloat, "float32"},
    {at::kDouble, "float64"},
    {at::kHalf, "float16"},
    {at::kBFloat16, "bfloat16"},
    {at::kLong, "int64"},
    {at::kInt, "int32"},
    {at::kShort, "int16"},
    {at::kChar, "int8"},
    {at::kByte, "uint8"},
    {at::kUInt16, "uint16"},
    {at::kUInt32, "uint32"},
    {at::kUInt64, "uint64"},
    {at::kBool, "bool"},
    {at::kFloat8_e4m3fn, "float8_e4m3fn"},
    {at::kFloat8_e5m2, "float8_e5m2"},
    {at::kFloat8_e4m3fnuz, "float8_e4m3fnuz"},
    {at::kFloat8_e5m2fnuz, "float8_e5m2fnuz"},
    {at::kFloat8_e8m0fnu, "float8_e8m0fnu"},
    {at::kFloat4_e2m1fn_x2, "float4_e2m1fn_x2"},
    {at::kComplexFloat, "complex64"},
    {at::kComplexDouble, "complex128"},
};

}  // namespace

std::string DtypeName(at::ScalarType type) {
  for (const auto& [known, name] : kTypes)
    if (known == type) return name;
  return c10::toString(type);
}

at::ScalarType DtypeOf(const std::string& name) {
  for (const auto& [type, known] : kTypes)
    if (name == known) return type;
  throw Error("dtype", "\"" + name + "\" is not known");
}

std::string SafetensorsDtype(at::ScalarType type) {
  const Dtype* dtype = FindDtype(DtypeName(type));
  if (!dtype) throw Error("dtype", DtypeName(type) + " cannot be stored in a safetensors file");
  return dtype->name;
}

at::ScalarType DtypeOfSafetensors(const std::string& name) {
  const Dtype* dtype = FindDtype(name);
  if (!dtype || !*dtype->torch) throw Error("dtype", name + " is not one that torch computes with");
  return DtypeOf(dtype->torch);
}

}  // namespace pipewright
