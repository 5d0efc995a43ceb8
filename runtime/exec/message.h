// The header that precedes a message where messages are checked. It is a message of its own: the
// receiver posts the other only when both mean the same one. (Open MPI writes past the end of a
// receive that is too short for a message of more than a few kilobytes.)
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

// The memory of a header as a message of its own.
Bundle HeaderBundle(std::shared_ptr<MessageHeader> header);

// "" or what is wrong.
std::string CompareHeaders(const MessageHeader& arrived, const MessageHeader& expected);

}  // namespace pipewright
