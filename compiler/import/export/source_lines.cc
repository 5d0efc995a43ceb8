#include "compiler/import/export/export_graph.h"

#include <algorithm>
#include <cctype>
#include <map>

#include "base/text.h"

namespace pipewright {

static bool IsLibrary(const std::string& file) {
  return file.find("/torch/") != std::string::npos || file.rfind("torch/", 0) == 0;
}

std::vector<SourceLine> LinesOf(const std::string& trace) {
  std::vector<SourceLine> found;
  const std::vector<std::string> lines = Split(trace, '\n');
  for (size_t i = 0; i < lines.size(); ++i) {
    const size_t begin = lines[i].find("File \"");
    const size_t end = begin == std::string::npos ? begin : lines[i].find("\", line ", begin);
    if (end == std::string::npos) continue;
    SourceLine line{lines[i].substr(begin + 6, end - begin - 6),
                    std::strtoul(lines[i].c_str() + end + 8, nullptr, 10), ""};
    if (i + 1 < lines.size() && lines[i + 1].find("File \"") == std::string::npos)
      line.code = lines[i + 1];
    line.code.erase(0, line.code.find_first_not_of(' '));
    found.push_back(line);
  }
  return found;
}

SourceLine OwnLine(const std::string& trace) {
  SourceLine found;
  for (const SourceLine& line : LinesOf(trace))
    if (!found.number || !IsLibrary(line.file)) found = line;
  return found;
}

std::vector<std::string> StackPaths(const std::string& stack) {
  std::vector<std::string> paths;
  for (const std::string& entry : Split(stack, ';')) {
    std::vector<std::string> fields = Split(entry, ',');
    if (fields.size() < 3 || fields[0] == fields[1]) continue;  // a placeholder has no path
    std::string path = fields[1];
    for (const char* prefix : {"L['self'].", "L['self']"})
      if (path.rfind(prefix, 0) == 0) path = path.substr(std::string(prefix).size());
    if (path.empty()) continue;
    size_t call = fields[0].rfind('@');
    if (call != std::string::npos && path.find('@') == std::string::npos)
      path += fields[0].substr(call);
    paths.push_back(path);
  }
  return paths;
}

// Returns `text` without parentheses if it is a plain name that the printer keeps, else "".
static std::string PlainName(std::string text) {
  text.erase(0, text.find_first_not_of(" ("));
  text.erase(text.find_last_not_of(" )") + 1);
  const bool plain = !text.empty() && std::isalpha(static_cast<unsigned char>(text[0])) &&
                     std::all_of(text.begin(), text.end(), [](unsigned char c) {
                       return c < 128 && (std::isalnum(c) || c == '_');
                     });
  const bool block = text == "else" || text == "try" || text == "finally";  // "else: x = y"
  return plain && !block ? text : "";
}

std::vector<std::string> AssignedIn(const std::string& code) {
  if (code.find(';') != std::string::npos) return {};
  // Finds the first "=" outside of brackets; gives up on comparisons and strings.
  int depth = 0;
  size_t end = 0, type = std::string::npos;
  for (; end < code.size() && code[end] != '='; ++end) {
    const char c = code[end];
    if (std::string("([{").find(c) != std::string::npos) ++depth;
    if (std::string(")]}").find(c) != std::string::npos) --depth;
    if (std::string("\"'#!<>").find(c) != std::string::npos || depth < 0) return {};
    if (c == ':' && depth == 0 && type == std::string::npos) type = end;
  }
  if (end >= code.size() || depth != 0) return {};
  if (end + 1 < code.size() && code[end + 1] == '=') return {};
  if (type == end - 1 && end) return {};  // :=
  std::string left = code.substr(0, std::min(type, end));
  if (type == std::string::npos)
    left.erase(left.find_last_not_of("+-*/%@&|^") + 1);  // x += y
  left.erase(left.find_last_not_of(' ') + 1);
  std::vector<std::string> names;
  for (const std::string& target : Split(left, ',')) names.push_back(PlainName(target));
  if (names.size() > 1 && names.back().empty() && left.find_last_of(',') + 1 == left.size())
    names.pop_back();
  return names;
}

namespace {

bool IsOpen(const std::string& code) {
  int depth = 0;
  for (char c : code) depth += c == '(' || c == '[' || c == '{' ? 1 : 0;
  for (char c : code) depth -= c == ')' || c == ']' || c == '}' ? 1 : 0;
  return depth > 0;
}

std::string LastPart(const std::string& path) {
  const std::string plain = path.substr(0, path.find('@'));
  return plain.substr(plain.rfind('.') + 1);
}

bool IsNumber(const std::string& text) {
  return !text.empty() && text.find_first_not_of("0123456789") == std::string::npos;
}

struct Statement {
  std::vector<SourceLine> lines;   // the model's own calls
  std::vector<std::string> stack;  // of submodule calls
};

// Returns true if both belong to the same statements from the outermost one down to `depth`.
bool Share(const Statement& a, const Statement& b, size_t depth) {
  if (a.lines.size() <= depth || b.lines.size() <= depth) return false;
  for (size_t i = 0; i <= depth; ++i)
    if (a.lines[i].number != b.lines[i].number || a.lines[i].file != b.lines[i].file) return false;
  return true;
}

// Returns true if the statement of `lines[depth]` runs again for the next submodule of a list, like
// "x = layer(x)" in a loop.
bool StartsAgain(const Statement& before, const Statement& after, size_t depth) {
  const std::string& code = before.lines[depth].code;
  size_t common = 0;
  while (common < std::min(before.stack.size(), after.stack.size()) &&
         before.stack[common] == after.stack[common])
    ++common;
  // If the line names a submodule that holds the list, that submodule calls all of it.
  if (common && code.find("." + LastPart(before.stack[common - 1]) + "(") != std::string::npos)
    return false;
  if (common == after.stack.size()) return false;
  const std::string place = LastPart(after.stack[common]);
  return IsNumber(place) && code.find("[" + place + "]") == std::string::npos;
}

// Returns true if nodes[i] is the last one of its statement at `depth`.
bool IsLast(const std::vector<const Statement*>& nodes, size_t i, size_t depth) {
  constexpr size_t kLongest = 64;  // nodes to search for a statement's further lines
  if (i + 1 == nodes.size()) return true;
  const Statement &here = *nodes[i], &next = *nodes[i + 1];
  if (Share(here, next, depth)) return StartsAgain(here, next, depth);
  if (!IsOpen(here.lines[depth].code)) return true;
  for (size_t k = i + 1; k < std::min(nodes.size(), i + kLongest); ++k) {
    if (Share(here, *nodes[k], depth)) return false;
    if ((depth > 0 && !Share(here, *nodes[k], depth - 1)) || nodes[k]->lines.size() <= depth ||
        nodes[k]->lines[depth].number < here.lines[depth].number)
      return true;
  }
  return true;
}

}  // namespace

std::unordered_map<std::string, std::string> VariablesOf(const ExportJson& nodes) {
  std::map<std::pair<std::string, std::string>, Statement> known;
  std::vector<const Statement*> statements;
  for (const ExportJson& node : nodes) {
    const ExportJson metadata = node.value("metadata", ExportJson::object());
    const std::string trace = metadata.value("stack_trace", std::string()),
                      stack = metadata.value("nn_module_stack", std::string());
    auto [at, fresh] = known.try_emplace({trace, stack});
    if (fresh) {
      at->second.lines = LinesOf(trace);
      std::erase_if(at->second.lines, [](const SourceLine& line) { return IsLibrary(line.file); });
      at->second.stack = StackPaths(stack);
    }
    statements.push_back(&at->second);
  }
  std::unordered_map<std::string, std::string> variables;
  for (size_t i = 0; i < statements.size(); ++i) {
    const std::vector<SourceLine>& lines = statements[i]->lines;
    const std::vector<std::string> results = ResultNames(nodes[i]);
    for (size_t depth = lines.size(); depth-- > 0 && IsLast(statements, i, depth);) {
      // A returned value is assigned where the function is called.
      if (lines[depth].code.rfind("return ", 0) == 0) continue;
      const std::vector<std::string> names = AssignedIn(lines[depth].code);
      for (size_t k = 0; k < names.size() && names.size() == results.size(); ++k)
        if (!names[k].empty()) variables.emplace(results[k], names[k]);
      break;
    }
  }
  return variables;
}

}  // namespace pipewright
