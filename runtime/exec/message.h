// The header that precedes each message when messages are checked. It is a message of its own: the
// receiver posts the receive for the data only if both sides mean the same message. (Open MPI
// writes past the end of a receive buffer that is too short for a message of more than a few
// kilobytes.)
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

// Returns a bundle that sends or receives the header as a message of its own.
Bundle HeaderBundle(std::shared_ptr<MessageHeader> header);

// Returns "" if they match, or a description of the difference.
std::string CompareHeaders(const MessageHeader& arrived, const MessageHeader& expected);

}  // namespace pipewright
