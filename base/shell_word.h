// Words of command lines, as one writes them in a shell.
#pragma once
#include <algorithm>
#include <cctype>
#include <string>
#include <string_view>

#include "base/text.h"

namespace pipewright {

// Returns the word in single quotes, unless that is needless.
inline std::string ShellWord(const std::string& word) {
  const auto plain = [](unsigned char c) {
    return std::isalnum(c) || std::string_view("%+,-./:=@_").find(c) != std::string_view::npos;
  };
  if (!word.empty() && std::all_of(word.begin(), word.end(), plain)) return word;
  return "'" + Join(Split(word, '\''), "'\\''") + "'";
}

}  // namespace pipewright
