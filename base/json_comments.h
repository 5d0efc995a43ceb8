// Allows comments in the JSON files that people write.
#pragma once
#include <string>

namespace pipewright {

// Returns `text` with its comments (// to the end of the line, /* to */) replaced by spaces, so
// that lines and columns stay the same. ReadJson does this; readers that keep the text for the
// positions of errors call it themselves. An unterminated comment stays, and the parser refuses it.
std::string WithoutComments(std::string text);

}  // namespace pipewright
