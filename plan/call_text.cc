#include "plan/call_text.h"

#include "plan/text.h"

namespace pipewright {

std::string CallText(const Manifest& manifest) {
  std::vector<std::string> inputs;
  bool recorded = false;
  for (int id : manifest.inputs) {
    const ValueInfo& value = manifest.values[id];
    std::string text = value.name;
    if (value.kind != "tensor") text += ": " + value.kind;
    if (!value.dtype.empty()) {
      text += ": " + value.dtype + " [" + Join(value.shape, ", ") + "]";
      recorded = true;
    }
    inputs.push_back(text);
  }
  return (recorded ? "the model was exported for the call (" : "the model takes (") +
         Join(inputs, ", ") + ")";
}

}  // namespace pipewright
