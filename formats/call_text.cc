#include "formats/call_text.h"

#include "base/text.h"

namespace pipewright {

std::string CallText(const std::vector<ValueInfo>& inputs) {
  std::vector<std::string> texts;
  for (const ValueInfo& value : inputs) {
    std::string text = value.name;
    if (value.kind != "tensor") text += ": " + value.kind;
    if (!value.dtype.empty()) text += ": " + value.dtype + " [" + Join(value.shape, ", ") + "]";
    texts.push_back(text);
  }
  return "(" + Join(texts, ", ") + ")";
}

std::string CallText(const Manifest& manifest) {
  std::vector<ValueInfo> inputs;
  bool recorded = false;
  for (int id : manifest.inputs) {
    inputs.push_back(manifest.values[static_cast<size_t>(id)]);
    recorded = recorded || !inputs.back().dtype.empty();
  }
  return (recorded ? "the model was exported for the call " : "the model takes ") +
         CallText(inputs);
}

}  // namespace pipewright
