#include "base/error.h"
#include "compiler/import/export_graph.h"

namespace pipewright {

at::ScalarType ExportDtype(int64_t number) {
  switch (number) {
    case 1:
      return at::kByte;
    case 2:
      return at::kChar;
    case 3:
      return at::kShort;
    case 4:
      return at::kInt;
    case 5:
      return at::kLong;
    case 6:
      return at::kHalf;
    case 7:
      return at::kFloat;
    case 8:
      return at::kDouble;
    case 9:
      return at::kComplexHalf;
    case 10:
      return at::kComplexFloat;
    case 11:
      return at::kComplexDouble;
    case 12:
      return at::kBool;
    case 13:
      return at::kBFloat16;
    case 28:
      return at::kUInt16;
    case 29:
      return at::kFloat8_e4m3fn;
    case 30:
      return at::kFloat8_e5m2;
    case 31:
      return at::kFloat8_e4m3fnuz;
    case 32:
      return at::kFloat8_e5m2fnuz;
    case 33:
      return at::kFloat8_e8m0fnu;
    case 34:
      return at::kUInt32;
    case 35:
      return at::kUInt64;
    default:
      throw Error("model.json", "dtype number " + std::to_string(number) + " is unknown");
  }
}

at::Layout ExportLayout(int64_t number) {
  switch (number) {
    case 1:
      return at::kSparse;
    case 2:
      return at::kSparseCsr;
    case 3:
      return at::kSparseCsc;
    case 4:
      return at::kSparseBsr;
    case 5:
      return at::kSparseBsc;
    case 6:
      return at::kMkldnn;
    case 7:
      return at::kStrided;
    default:
      throw Error("model.json", "layout number " + std::to_string(number) + " is unknown");
  }
}

at::MemoryFormat ExportMemoryFormat(int64_t number) {
  switch (number) {
    case 1:
      return at::MemoryFormat::Contiguous;
    case 2:
      return at::MemoryFormat::ChannelsLast;
    case 3:
      return at::MemoryFormat::ChannelsLast3d;
    case 4:
      return at::MemoryFormat::Preserve;
    default:
      throw Error("model.json", "memory format number " + std::to_string(number) + " is unknown");
  }
}

}  // namespace pipewright
