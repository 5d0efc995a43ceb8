// Comments in JSON files that people write.
#pragma once
#include <string>

namespace pipewright {

// Returns `text` with its comments (// to the end of the line, /* to */) replaced by spaces, so that
// lines and columns stay the same. A comment without an end stays, for the parser to refuse.
std::string WithoutComments(std::string text);

}  // namespace pipewright
