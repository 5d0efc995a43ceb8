#include "base/export_dtype.h"

#include "base/error.h"

namespace pipewright {

std::string DtypeOfExport(int64_t number, const std::string& where) {
  static constexpr std::pair<int64_t, const char*> kNames[] = {{1, "uint8"},
                                                               {2, "int8"},
                                                               {3, "int16"},
                                                               {4, "int32"},
                                                               {5, "int64"},
                                                               {6, "float16"},
                                                               {7, "float32"},
                                                               {8, "float64"},
                                                               {9, "complex32"},
                                                               {10, "complex64"},
                                                               {11, "complex128"},
                                                               {12, "bool"},
                                                               {13, "bfloat16"},
                                                               {28, "uint16"},
                                                               {29, "float8_e4m3fn"},
                                                               {30, "float8_e5m2"},
                                                               {31, "float8_e4m3fnuz"},
                                                               {32, "float8_e5m2fnuz"},
                                                               {33, "float8_e8m0fnu"},
                                                               {34, "uint32"},
                                                               {35, "uint64"}};
  for (const auto& [known, name] : kNames)
    if (known == number) return name;
  throw Error(where, "dtype number " + std::to_string(number) + " is unknown");
}

}  // namespace pipewright
