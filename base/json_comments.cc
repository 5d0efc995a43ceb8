#include "base/json_comments.h"

namespace pipewright {

std::string WithoutComments(std::string text) {
  for (size_t i = 0; i + 1 < text.size(); ++i) {
    if (text[i] == '"') {
      for (++i; i < text.size() && text[i] != '"'; ++i) i += text[i] == '\\';
      continue;
    }
    if (text[i] != '/' || (text[i + 1] != '/' && text[i + 1] != '*')) continue;
    const bool line = text[i + 1] == '/';
    size_t end = text.find(line ? "\n" : "*/", i + 2);
    if (end == std::string::npos) {
      if (!line) break;
      end = text.size();
    }
    if (!line) end += 2;
    for (; i < end; ++i)
      if (text[i] != '\n' && text[i] != '\r') text[i] = ' ';
    --i;
  }
  return text;
}

}  // namespace pipewright
