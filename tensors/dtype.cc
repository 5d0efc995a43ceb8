#include "tensors/dtype.h"

#include "base/dtype.h"
#include "base/error.h"

namespace pipewright {

std::string DtypeName(at::ScalarType type) {
  if (type == at::ScalarType::Undefined) return "undefined";
  return std::string(c10::getDtypeNames(type).first);
}

at::ScalarType DtypeOf(const std::string& name) {
  const auto& types = c10::getStringToDtypeMap();
  const auto found = types.find(name);
  if (found == types.end()) throw Error("dtype", "\"" + name + "\" is not known");
  return found->second;
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
