#include "runtime/exec/message.h"

#include <utility>

#include "runtime/exec/message_size.h"

namespace pipewright {

MessageHeader HeaderOf(const Bundle& bundle, uint64_t plan, int edge, int microbatch,
                       bool backward) {
  return {plan,       TotalBytes(bundle), edge,
          microbatch, backward,           static_cast<int32_t>(bundle.regions.size())};
}

Bundle HeaderBundle(std::shared_ptr<MessageHeader> header) {
  return {{{header.get(), sizeof(MessageHeader)}}, std::move(header)};
}

std::string CompareHeaders(const MessageHeader& arrived, const MessageHeader& expected) {
  if (arrived == expected) return "";
  if (arrived.plan != expected.plan) return "the sender runs another plan";
  auto name = [](const MessageHeader& h) {
    return (h.backward ? "gradients of edge " : "values of edge ") + std::to_string(h.edge) +
           ", microbatch " + std::to_string(h.microbatch) + ", " + SizeText(h.bytes, h.parts);
  };
  return "arrived: " + name(arrived) + "; expected: " + name(expected);
}

}  // namespace pipewright
