#include "formats/call_text.h"

#include "base/text.h"

namespace pipewright {

std::string CallText(const std::vector<CallArgument>& arguments) {
  std::vector<std::string> texts;
  for (const CallArgument& value : arguments) {
    std::string text = value.name;
    if (!value.type.empty()) text += ": " + value.type;
    if (!value.dtype.empty()) text += ": " + value.dtype + " [" + Join(value.shape, ", ") + "]";
    texts.push_back(text);
  }
  return "(" + Join(texts, ", ") + ")";
}

std::string CallText(const Manifest& manifest) {
  std::vector<CallArgument> arguments;
  bool recorded = false;
  for (int id : manifest.inputs) {
    const ValueInfo& value = manifest.values[static_cast<size_t>(id)];
    const std::string type = value.kind == ValueKind::kTensor ? "" : ToText(value.kind);
    arguments.push_back({value.name, type, value.dtype, value.shape});
    recorded = recorded || !value.dtype.empty();
  }
  return (recorded ? "the model was exported for the call " : "the model takes ") +
         CallText(arguments);
}

}  // namespace pipewright
