#include "base/export_dtype.h"

#include <gtest/gtest.h>

#include "base/dtype.h"
#include "base/error.h"

namespace pipewright {

TEST(ExportDtype, NumbersOfTheSchema) {
  EXPECT_EQ(DtypeOfExport(7, "m"), "float32");
  EXPECT_EQ(DtypeOfExport(13, "m"), "bfloat16");
  EXPECT_EQ(DtypeOfExport(5, "m"), "int64");
  EXPECT_EQ(DtypeOfExport(12, "m"), "bool");
}

TEST(ExportDtype, NamesAreThoseOfTheTableOfDtypes) {
  int known = 0;
  for (int number = -1; number < 64; ++number) {
    std::string name;
    try {
      name = DtypeOfExport(number, "m");
    } catch (const Error& e) {
      EXPECT_EQ(std::string(e.what()), "m: dtype number " + std::to_string(number) + " is unknown");
      continue;
    }
    ++known;
    // Safetensors has no such complex types.
    if (name == "complex32" || name == "complex128") continue;
    const Dtype* dtype = FindDtype(name);
    ASSERT_NE(dtype, nullptr) << name;
    EXPECT_EQ(dtype->torch, name);
  }
  EXPECT_EQ(known, 21);
}

}  // namespace pipewright
