#include "plan/partition/pipedream/codegen/template_text.h"

#include <algorithm>
#include <vector>

#include "base/error.h"
#include "base/text.h"

namespace pipewright {

std::string FillTemplate(const std::string& text, const std::map<std::string, std::string>& values,
                         const std::string& where, const std::vector<std::string>& needed) {
  for (const std::string& name : needed)
    if (text.find("%(" + name + ")s") == std::string::npos)
      throw Error(where, "it lacks %(" + name + ")s",
                  "start from the one in templates/, and keep every %(name)s");
  std::string out;
  for (size_t i = 0; i < text.size(); ++i) {
    if (text[i] != '%') {
      out += text[i];
      continue;
    }
    if (text.compare(i, 2, "%%") == 0) {
      out += text[i++];
      continue;
    }
    size_t end = text.find(")s", i);
    if (text.compare(i, 2, "%(") != 0 || end == std::string::npos)
      throw Error(where, "a % that begins no %(name)s", "write %% for a percent sign");
    std::string name = text.substr(i + 2, end - i - 2);
    auto value = values.find(name);
    if (value == values.end()) {
      std::vector<std::string> known;
      for (const auto& [key, unused] : values) known.push_back(key);
      throw Error(where, "there is no %(" + name + ")s" + Suggest(name, known),
                  "known here: " + Join(known, ", "));
    }
    out += value->second;
    i = end + 1;
  }
  // Removes spaces and empty lines that empty values leave: at most one empty line stays within a
  // class, two outside.
  std::string clean;
  int empty = 0;
  for (const std::string& line : Split(out, '\n')) {
    size_t end = line.find_last_not_of(' ');
    if (end == std::string::npos) {
      ++empty;
      continue;
    }
    clean.append(std::min(empty, line[0] == ' ' ? 1 : 2), '\n');
    clean += line.substr(0, end + 1) + '\n';
    empty = 0;
  }
  return clean;
}

}  // namespace pipewright
