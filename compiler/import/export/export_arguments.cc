// Converts arguments of export nodes to values of the graph.
#include <cmath>
#include <limits>

#include "base/error.h"
#include "compiler/import/export/export_graph.h"

namespace pipewright {

using torch::jit::Node;
using torch::jit::Value;

// JSON has no infinities, so the schema writes them as strings.
static double Number(const ExportJson& json) {
  if (!json.is_string()) return json.get<double>();
  const std::string text = json.get<std::string>();
  if (text == "Infinity") return std::numeric_limits<double>::infinity();
  if (text == "-Infinity") return -std::numeric_limits<double>::infinity();
  if (text == "NaN") return std::numeric_limits<double>::quiet_NaN();
  throw Error("model.json", "\"" + text + "\" stands where a number should");
}

template <class T>
static c10::List<T> ListOf(const ExportJson& json) {
  c10::List<T> list;
  for (const ExportJson& entry : json) {
    if constexpr (std::is_same_v<T, double>)
      list.push_back(Number(entry));
    else
      list.push_back(entry.get<T>());
  }
  return list;
}

static c10::TypePtr Unwrapped(const c10::Argument* schema) {
  if (!schema) return nullptr;
  c10::TypePtr type = schema->type();
  if (auto optional = type->cast<c10::OptionalType>()) type = optional->getElementType();
  return type;
}

// TorchScript converts a bool to the integer 1 or 0 where it expects a number, which promotes a
// mask to integers. A tensor without dimensions keeps the dtype of the other operand, like Python's
// bool.
Value* ExportConverter::BoolTensor(Value* flag) {
  Value* number = model_.graph->insert(c10::Symbol::aten("Int"), {flag});
  return model_.graph->insert(c10::Symbol::aten("scalar_tensor"), {number},
                              {{"dtype", static_cast<int64_t>(at::kBool)}});
}

// Converts an argument to a plain value, regardless of the operator's type.
Value* ExportConverter::Plain(const ExportJson& argument) { return Argument(argument, nullptr); }

Value* ExportConverter::Argument(const ExportJson& argument, const c10::Argument* schema) {
  if (!argument.is_object() || argument.size() != 1)
    Refuse("has an argument that is not an object with one key, its kind");
  const std::string kind = argument.begin().key();
  const ExportJson& content = argument.begin().value();
  c10::TypePtr type = Unwrapped(schema);
  auto wants = [&](c10::TypeKind wanted) { return type && type->kind() == wanted; };
  bool list = wants(c10::TypeKind::ListType);
  c10::TypePtr element = list ? type->cast<c10::ListType>()->getElementType() : nullptr;
  auto graph = model_.graph;

  if (kind == "as_none") return Constant(c10::IValue());
  if (kind == "as_tensor") {
    Value* value = Lookup(content.at("name").get<std::string>());
    // One tensor is given where a list is expected, as in index(x, [i]).
    if (list) return graph->insertNode(graph->createList(element, {value}))->output();
    return value;
  }
  if (kind == "as_optional_tensor") {
    if (content.contains("as_none")) return Constant(c10::IValue());
    return Lookup(content.at("as_tensor").at("name").get<std::string>());
  }
  if (kind == "as_tensors" || kind == "as_optional_tensors") {
    std::vector<Value*> values;
    for (const ExportJson& entry : content) {
      if (entry.contains("as_none")) {
        values.push_back(Constant(c10::IValue()));
      } else {
        const ExportJson& tensor = entry.contains("as_tensor") ? entry["as_tensor"] : entry;
        values.push_back(Lookup(tensor.at("name").get<std::string>()));
      }
    }
    c10::TypePtr contained = element;
    if (!contained)
      contained = kind == "as_tensors" ? c10::TypePtr(c10::TensorType::get())
                                       : c10::TypePtr(c10::OptionalType::ofTensor());
    return graph->insertNode(graph->createList(contained, values))->output();
  }
  if (kind == "as_int" || kind == "as_float" || kind == "as_bool") {
    if (wants(c10::TypeKind::TensorType))
      return kind == "as_bool" ? BoolTensor(Constant(content.get<bool>())) : nullptr;
    if (kind == "as_bool" && !wants(c10::TypeKind::IntType) &&
        !wants(c10::TypeKind::FloatType) && !wants(c10::TypeKind::NumberType))
      return Constant(content.get<bool>());
    if (list) {
      int64_t count = schema->N().value_or(1);
      if (element->kind() == c10::TypeKind::FloatType)
        return Constant(c10::List<double>(std::vector<double>(count, Number(content))));
      return Constant(c10::List<int64_t>(std::vector<int64_t>(count, content.get<int64_t>())));
    }
    if (kind == "as_float" || wants(c10::TypeKind::FloatType))
      return Constant(content.is_boolean() ? double(content.get<bool>()) : Number(content));
    return Constant(content.is_boolean() ? int64_t(content.get<bool>()) : content.get<int64_t>());
  }
  if (kind == "as_ints") {
    if (element && element->kind() == c10::TypeKind::FloatType)
      return Constant(ListOf<double>(content));
    if (element && element->kind() == c10::TypeKind::TensorType && content.empty())
      return graph->insertNode(graph->createList(element, {}))->output();
    if (element && element->kind() == c10::TypeKind::BoolType && content.empty())
      return Constant(c10::List<bool>());
    return Constant(ListOf<int64_t>(content));
  }
  if (kind == "as_floats") return Constant(ListOf<double>(content));
  if (kind == "as_bools") return Constant(ListOf<bool>(content));
  if (kind == "as_strings") return Constant(ListOf<std::string>(content));
  if (kind == "as_string") return Constant(content.get<std::string>());
  if (kind == "as_complex")
    return Constant(c10::complex<double>(Number(content.at("real")), Number(content.at("imag"))));
  if (kind == "as_scalar_type")
    return Constant(static_cast<int64_t>(ExportDtype(content.get<int64_t>())));
  if (kind == "as_layout")
    return Constant(static_cast<int64_t>(ExportLayout(content.get<int64_t>())));
  if (kind == "as_memory_format")
    return Constant(static_cast<int64_t>(ExportMemoryFormat(content.get<int64_t>())));
  if (kind == "as_device") {
    c10::Device device(content.at("type").get<std::string>());
    if (content.contains("index") && content["index"].is_number())
      device.set_index(content["index"].get<c10::DeviceIndex>());
    return Constant(device);
  }
  if (kind == "as_sym_int" || kind == "as_sym_float" || kind == "as_sym_bool") {
    if (!content.contains("as_name"))
      return Argument(ExportJson{{content.begin().key(), content.begin().value()}}, schema);
    Value* value = Lookup(content["as_name"].get<std::string>());
    const bool flag = value->type()->kind() == c10::TypeKind::BoolType;
    if (wants(c10::TypeKind::TensorType)) return flag ? BoolTensor(value) : nullptr;
    if (wants(c10::TypeKind::FloatType) && value->type()->kind() == c10::TypeKind::IntType)
      return graph->insert(c10::Symbol::aten("Float"), {value});
    if (flag && wants(c10::TypeKind::NumberType))
      return graph->insert(c10::Symbol::aten("Int"), {value});
    if (list) {
      std::vector<Value*> values(schema->N().value_or(1), value);
      return graph->insertNode(graph->createList(element, values))->output();
    }
    return value;
  }
  if (kind == "as_sym_ints" || kind == "as_sym_floats" || kind == "as_sym_bools") {
    c10::TypePtr contained = kind == "as_sym_ints"     ? c10::TypePtr(c10::IntType::get())
                             : kind == "as_sym_floats" ? c10::TypePtr(c10::FloatType::get())
                                                       : c10::TypePtr(c10::BoolType::get());
    std::vector<Value*> values;
    for (const ExportJson& entry : content) {
      if (entry.contains("as_name"))
        values.push_back(Lookup(entry["as_name"].get<std::string>()));
      else if (kind == "as_sym_floats")
        values.push_back(Constant(Number(entry.begin().value())));
      else if (kind == "as_sym_ints")
        values.push_back(Constant(entry.begin().value().get<int64_t>()));
      else
        values.push_back(Constant(entry.begin().value().get<bool>()));
    }
    return graph->insertNode(graph->createList(contained, values))->output();
  }
  Refuse("has an argument of kind " + kind + ", which is not supported");
}

}  // namespace pipewright
