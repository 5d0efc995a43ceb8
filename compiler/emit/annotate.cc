#include "compiler/emit/annotate.h"

#include <charconv>
#include <cstdlib>

#include "base/text.h"

namespace pipewright {

// Shortens floats outside of strings: 1.0000000000000001e-05 -> 1e-05.
static std::string ShortFloats(const std::string& row) {
  std::string out;
  char quote = 0;
  for (size_t i = 0; i < row.size();) {
    char c = row[i];
    bool starts = !quote && std::isdigit(static_cast<unsigned char>(c)) &&
                  (i == 0 || !(std::isalnum(static_cast<unsigned char>(row[i - 1])) ||
                               row[i - 1] == '_' || row[i - 1] == '.'));
    if (!starts) {
      if (quote ? c == quote : (c == '"' || c == '\'')) quote = quote ? 0 : c;
      out += c, ++i;
      continue;
    }
    const char* begin = row.c_str() + i;
    char* end = nullptr;
    double number = std::strtod(begin, &end);
    std::string literal(begin, static_cast<size_t>(end - begin));
    i += literal.size();
    if (literal.find('.') != std::string::npos && literal.size() > 15) {
      char buffer[40];
      auto [last, error] = std::to_chars(buffer, buffer + sizeof buffer, number);
      std::string shorter(buffer, last);
      if (shorter.find_first_of(".e") == std::string::npos) shorter += ".";
      if (error == std::errc() && shorter.size() < literal.size()) literal = shorter;
    }
    out += literal;
  }
  return out;
}

// Joins a signature, "  def forward(self: __torch__.Module0,\n    x: Tensor) -> Tensor:", on one
// line if it fits, and drops the type of `self`.
static std::string Signature(const std::string& rows) {
  std::string self = rows;
  if (const size_t type = self.find("(self: "); type != std::string::npos)
    self.erase(type + 5, self.find_first_of(",)", type) - type - 5);
  std::string line;
  for (const std::string& row : Split(self, '\n'))
    line += line.empty() ? row : " " + row.substr(row.find_first_not_of(' '));
  return line.size() <= 100 ? line : self;
}

std::string AnnotateCode(const std::string& text, const torch::jit::SourceRangeRecords& ranges,
                         const std::map<std::string, std::string>& notes) {
  constexpr size_t kLongest = 70;
  std::string out, submodule, line, signature;
  size_t record = 0, at = 0;
  bool forward = false;
  for (const std::string& row : Split(text, '\n')) {
    size_t begin = at;
    at += row.size() + 1;
    if (at > text.size() && row.empty()) break;
    // Skips the class's declarations: the manifest and the header of the file have them.
    if (signature.empty() && !forward && row.rfind("  ", 0) == 0 && row.rfind("  def ", 0) != 0)
      continue;
    if (!signature.empty() || row.rfind("  def ", 0) == 0) {
      signature += (signature.empty() ? "" : "\n") + row;
      if (row.back() != ':') continue;
      out += Signature(signature) + "\n";
      signature.clear();
      forward = true;
      continue;
    }
    bool body = forward && row.rfind("    ", 0) == 0 && row.size() > 4 && row[4] != ' ';
    if (body && row.rfind("    return", 0) != 0) {
      while (record + 1 < ranges.size() && ranges[record + 1].bytes <= begin + 4) ++record;
      auto source = ranges.empty() ? nullptr : ranges[record].range.source();
      std::vector<std::string> parts;
      if (source) parts = Split(source->text_str().str(), '|');
      if (parts.size() >= 3) {
        std::string code = parts[2];
        for (size_t i = 3; i < parts.size(); ++i) code += "|" + parts[i];
        if (code.size() > kLongest) code = code.substr(0, kLongest) + "...";
        std::string where = parts[1] + (parts[1].empty() || code.empty() ? "" : ": ") + code;
        if (parts[0] != submodule || where != line) {
          std::string comment = parts[0];
          if (where != line && !where.empty()) comment += (comment.empty() ? "" : "  ") + where;
          if (comment.empty()) comment = "(the model itself)";
          out += "    # " + comment + "\n";
          submodule = parts[0], line = where;
        }
      }
    }
    out += ShortFloats(row);
    if (body)
      if (auto note = notes.find(row.substr(4, row.find(' ', 4) - 4)); note != notes.end())
        out += "  # " + note->second;
    out += "\n";
  }
  return out;
}

void NameResult(std::string& text, const std::string& name) {
  const std::string keyword = "\n    return ";
  size_t at = text.rfind(keyword);
  if (at == std::string::npos) return;
  std::string expression = text.substr(at + keyword.size());
  if (expression == name + "\n") return;
  text = text.substr(0, at) + "\n    " + name + " = " + expression + "    return " + name + "\n";
}

}  // namespace pipewright
