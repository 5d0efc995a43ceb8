// The header that precedes a message where messages are checked.
#pragma once
#include <cstdint>
#include <memory>
#include <string>

#include "runtime/exec/transport.h"

namespace pipewright {

struct MessageHeader {
  uint64_t plan = 0;  // hash of the plan's text
  uint64_t bytes = 0;
  int32_t edge = -1, microbatch = -1, backward = 0, parts = 0;

  bool operator==(const MessageHeader&) const = default;
};

MessageHeader HeaderOf(const Bundle& bundle, uint64_t plan, int edge, int microbatch,
                       bool backward);

// `bundle` with `header` as its first region.
Bundle WithHeader(const Bundle& bundle, std::shared_ptr<MessageHeader> header);

// "" or what is wrong.
std::string CompareHeaders(const MessageHeader& arrived, const MessageHeader& expected);

}  // namespace pipewright
