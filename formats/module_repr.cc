#include "formats/module_repr.h"

#include <algorithm>
#include <cctype>
#include <set>

#include "base/error.h"
#include "base/text.h"

namespace pipewright {

namespace {

constexpr int kDeepest = 20;        // modules in modules, tuples in tuples
constexpr size_t kLongest = 100;    // digits of a number: Python refuses thousands
constexpr size_t kShownOfBad = 24;  // characters of a bad literal in a message

bool IsWord(char c) { return std::isalnum(static_cast<unsigned char>(c)) || c == '_'; }
bool IsDigit(char c) { return c >= '0' && c <= '9'; }

class ReprReader {
 public:
  explicit ReprReader(const Description& description)
      : description_(description), text_(description.text) {}

  ModuleRepr Whole() {
    Space();
    ModuleRepr module = Module(0);
    Space();
    if (at_ < text_.size()) Fail(at_, "nothing is expected after its description");
    return module;
  }

 private:
  [[noreturn]] void Fail(size_t at, const std::string& what, const std::string& cure = "") const {
    throw Error(description_.At(at), what, cure);
  }
  [[noreturn]] void FailLiteral(size_t at) const {
    std::string shown = text_.substr(at, kShownOfBad);
    for (char& c : shown)
      if (static_cast<unsigned char>(c) < ' ') c = ' ';
    if (at + kShownOfBad < text_.size()) shown += "...";
    Fail(at,
         "a number, a string, True, False, None, a tuple or a list is expected, not \"" + shown +
             "\"",
         "describe the layer as print(layer) does: its name and its arguments");
  }
  [[noreturn]] void FailOpen(size_t open) const {
    Fail(open, std::string("this ") + text_[open] + " is never closed");
  }

  char Next() const { return at_ < text_.size() ? text_[at_] : '\0'; }
  bool Take(char c) {
    if (at_ >= text_.size() || text_[at_] != c) return false;
    ++at_;
    return true;
  }
  void Space() {
    while (Next() == ' ' || Next() == '\t') ++at_;
  }
  std::string Word() {
    const size_t begin = at_;
    if (!IsDigit(Next()))
      while (at_ < text_.size() && IsWord(text_[at_])) ++at_;
    return text_.substr(begin, at_ - begin);
  }

  // Returns where the child's repr begins, after "(0): "; npos if there is no child here. PyTorch
  // allows any name without a dot, even "relu 1".
  size_t ChildHere() const {
    if (Next() != '(') return std::string::npos;
    const size_t end = text_.find_first_of("(),", at_ + 1);
    if (end == std::string::npos || end == at_ + 1) return std::string::npos;
    return text_.compare(end, 2, "):") == 0 ? end + 2 : std::string::npos;
  }

  ModuleRepr Module(int depth) {
    ModuleRepr module;
    module.at = at_;
    if (depth > kDeepest) Fail(at_, "modules are nested more than twenty deep");
    do {
      const std::string word = Word();
      if (word.empty())
        Fail(at_, "the name of a layer is expected",
             "describe the layer as print(layer) does: its name and its arguments");
      module.name += word + (Next() == '.' ? "." : "");
    } while (Take('.'));
    Space();
    const size_t open = at_;
    if (!Take('(')) return module;
    std::set<std::string> names;
    while (Space(), !Take(')')) {
      if (at_ >= text_.size()) FailOpen(open);
      if (const size_t child = ChildHere(); child != std::string::npos) {
        at_ = child;
        Space();
        module.children.push_back(Module(depth + 1));
        continue;
      }
      Argument(module, names, depth);
      Space();
      if (Take(',') || Next() == ')' || ChildHere() != std::string::npos) continue;
      if (at_ >= text_.size()) FailOpen(open);
      Fail(at_, "a comma or a ) is expected here");
    }
    return module;
  }

  // Parses an argument. `names` are those of the arguments before it.
  void Argument(ModuleRepr& module, std::set<std::string>& names, int depth) {
    ModuleRepr::Argument argument;
    argument.at = at_;
    const std::string word = Word();
    Space();
    if (!word.empty() && Next() == '(' && !Literal(word)) {
      at_ = argument.at;  // SequenceWise (Sequential(...)): a child without a name
      module.children.push_back(Module(depth + 1));
      return;
    }
    if (word == "inplace" && Next() != '=') {
      argument.name = word, argument.value = "True";
    } else if (!word.empty() && Take('=')) {
      Space();
      if (IsPythonKeyword(word)) Fail(argument.at, word + " is a keyword of Python");
      argument.name = word;
      argument.value = KeywordValue();
    } else {
      at_ = argument.at;
      argument.value = Value(0);
    }
    if (argument.name.empty() && !names.empty())
      Fail(argument.at, "an argument without a name comes after those that have one");
    if (!argument.name.empty() && !names.insert(argument.name).second)
      Fail(argument.at, argument.name + " is given twice");
    module.arguments.push_back(argument);
  }

  static bool Literal(const std::string& word) {
    return word == "True" || word == "False" || word == "None" || word == "inf" || word == "nan" ||
           word == "torch";
  }

  std::string KeywordValue() {
    const size_t begin = at_;
    std::string word = Word();
    if (!word.empty() && !Literal(word))
      while (Next() == '-' && at_ + 1 < text_.size() && IsWord(text_[at_ + 1]))
        ++at_, word += '-' + Word();
    if (word.empty() || Literal(word) || Next() == '(' || Next() == '.' || Next() == '\'' ||
        Next() == '"') {
      at_ = begin;
      return Value(0);
    }
    return "'" + word + "'";  // padding_mode=reflect, mode=nearest-exact
  }

  std::string Value(int depth) {
    const size_t begin = at_;
    if (depth > kDeepest) Fail(at_, "tuples are nested more than twenty deep");
    if (Next() == '(' || Next() == '[') return List(depth);
    if (Next() == '\'' || Next() == '"') return String();
    if (text_.compare(at_, 11, "torch.Size(") == 0) {
      at_ += 11;
      if (Next() != '[') FailLiteral(begin);
      const std::string sizes = List(depth);
      if (!Take(')')) FailOpen(begin + 10);
      return "torch.Size(" + sizes + ")";
    }
    const bool negative = Take('-');
    const std::string word = Word();
    if (word == "inf" || word == "nan")
      return std::string("float('") + (negative ? "-" : "") + word + "')";
    if (!word.empty()) {
      if (negative || word == "torch" || !Literal(word)) FailLiteral(begin);
      return word;
    }
    return Number(begin);
  }

  std::string Number(size_t begin) {
    auto digits = [&] {
      const size_t first = at_;
      while (IsDigit(Next())) ++at_;
      return at_ - first;
    };
    const size_t first = at_, whole = digits();
    if (whole > 1 && text_[first] == '0') FailLiteral(begin);
    size_t fraction = 0;
    if (Take('.')) fraction = digits();
    if (whole + fraction == 0 || whole + fraction > kLongest) FailLiteral(begin);
    if (Next() == 'e' || Next() == 'E') {
      ++at_;
      if (!Take('-')) Take('+');
      const size_t exponent = digits();
      if (exponent == 0 || exponent > kLongest) FailLiteral(begin);
    }
    if (IsWord(Next()) || Next() == '.') FailLiteral(begin);
    return text_.substr(begin, at_ - begin);
  }

  // Parses a tuple or a list, and keeps its spaces.
  std::string List(int depth) {
    const size_t open = at_++;
    const char close = text_[open] == '(' ? ')' : ']';
    std::string out(1, text_[open]);
    auto space = [&] {
      const size_t begin = at_;
      Space();
      out += text_.substr(begin, at_ - begin);
    };
    while (space(), !Take(close)) {
      if (at_ >= text_.size()) FailOpen(open);
      out += Value(depth + 1);
      space();
      if (Take(','))
        out += ',';
      else if (at_ >= text_.size())
        FailOpen(open);
      else if (Next() != close)
        Fail(at_, std::string("a comma or a ") + close + " is expected here");
    }
    return out + close;
  }

  // Parses a string as repr() prints it. No layer prints one that is not ASCII.
  std::string String() {
    const size_t begin = at_++;
    while (at_ < text_.size() && text_[at_] != text_[begin]) {
      if (text_[at_] < ' ' || text_[at_] > '~') FailLiteral(begin);
      if (Take('\\') && std::string("\\'\"nrt").find(Next()) == std::string::npos)
        FailLiteral(begin);
      ++at_;
    }
    if (at_ >= text_.size()) Fail(begin, "this string is never closed");
    ++at_;
    return text_.substr(begin, at_ - begin);
  }

  const Description& description_;
  const std::string& text_;
  size_t at_ = 0;
};

}  // namespace

std::string Description::At(size_t offset) const {
  std::string place = path;
  const size_t character = static_cast<size_t>(column) + offset;
  if (line > 0) place += ":" + std::to_string(line) + ":" + std::to_string(character);
  return place + ": node " + node;
}

bool IsPythonKeyword(const std::string& word) {
  static const std::vector<std::string> kKeywords =
      Split("False None True and as assert async await break class continue def del elif else "
            "except finally for from global if import in is lambda nonlocal not or pass raise "
            "return try while with yield __debug__",
            ' ');
  return std::find(kKeywords.begin(), kKeywords.end(), word) != kKeywords.end();
}

ModuleRepr ReadModuleRepr(const Description& description) {
  return ReprReader(description).Whole();
}

std::string ReprName(const std::string& description) {
  std::string name = description.substr(0, description.find('('));
  const size_t begin = name.find_first_not_of(" \t"), end = name.find_last_not_of(" \t");
  return begin == std::string::npos ? "" : name.substr(begin, end + 1 - begin);
}

}  // namespace pipewright
