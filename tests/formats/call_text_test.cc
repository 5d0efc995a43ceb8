#include "formats/call_text.h"

#include <gtest/gtest.h>

namespace pipewright {

static ValueInfo Tensor(const std::string& name, const std::string& dtype,
                        const std::vector<std::string>& shape) {
  ValueInfo value;
  value.name = name, value.dtype = dtype, value.shape = shape;
  return value;
}

TEST(CallText, SaysWhatTheFileSays) {
  ValueInfo count;
  count.name = "n", count.kind = ValueKind::kInt;
  Manifest manifest;
  manifest.values = {Tensor("h", "float32", {"9"}), count, Tensor("x", "float32", {"s0", "4"}),
                     Tensor("mask", "bool", {})};
  manifest.inputs = {2, 1, 3};
  EXPECT_EQ(CallText({{"x", "", "float32", {"s0", "4"}}, {"n", "int", "", {}}}),
            "(x: float32 [s0, 4], n: int)");
  EXPECT_EQ(CallText(manifest),
            "the model was exported for the call (x: float32 [s0, 4], n: int, mask: bool [])");
  manifest.values = {Tensor("x", "", {}), Tensor("mask", "", {})};
  manifest.inputs = {0, 1};
  EXPECT_EQ(CallText(manifest), "the model takes (x, mask)");
}

}  // namespace pipewright
