// A part of export_graph.h: converts enums: dtypes, layouts, memory formats.
#include "base/error.h"
#include "base/export_dtype.h"
#include "compiler/import/export/export_graph.h"

namespace pipewright {

at::ScalarType ExportDtype(int64_t number) {
  return ScalarTypeOf(DtypeOfExport(number, "model.json"));
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
