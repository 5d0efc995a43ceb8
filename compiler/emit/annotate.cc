#include "compiler/emit/annotate.h"

#include <charconv>
#include <cstdlib>

#include "plan/text.h"

namespace pipewright {

// 1.0000000000000001e-05 -> 1e-05, outside of strings.
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

// The printed class with one weight a line and, above the operations of each submodule and line of
// the model, a comment that names them.
std::string AnnotateCode(const std::string& text, const torch::jit::SourceRangeRecords& ranges) {
  constexpr size_t kLongest = 70;
  std::string out, submodule, line;
  size_t record = 0, at = 0;
  bool forward = false;
  for (const std::string& row : Split(text, '\n')) {
    size_t begin = at;
    at += row.size() + 1;
    if (at > text.size() && row.empty()) break;
    bool list =
        row.rfind("  __parameters__ = [\"", 0) == 0 || row.rfind("  __buffers__ = [\"", 0) == 0;
    if (list) {
      size_t open = row.find('[') + 1;
      out += row.substr(0, open) + "\n    ";
      std::string names = row.substr(open, row.rfind(", ]") - open);
      for (size_t comma; (comma = names.find("\", \"")) != std::string::npos;) {
        out += names.substr(0, comma) + "\",\n    ";
        names = names.substr(comma + 3);
      }
      out += names + ",\n  ]\n";
      continue;
    }
    bool body = forward && row.rfind("    ", 0) == 0 && row.size() > 4 && row[4] != ' ';
    if (row.find("-> ") != std::string::npos && row.back() == ':') forward = true;
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
    out += ShortFloats(row) + "\n";
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
