#include "compiler/import/export/expression.h"

#include <vector>

namespace pipewright {
namespace {

constexpr int kDeepest = 200;

struct Reader {
  const std::string& text;
  size_t at = 0;
  bool ok = true;

  void Skip() {
    while (at < text.size() && text[at] == ' ') ++at;
  }
  std::string Word() {
    size_t begin = at;
    while (at < text.size() && std::string("(), '=").find(text[at]) == std::string::npos) ++at;
    return text.substr(begin, at - begin);
  }
  std::string Quoted() {
    size_t end = text.find('\'', at + 1);
    if (end == std::string::npos) return ok = false, "";
    std::string out = text.substr(at + 1, end - at - 1);
    at = end + 1;
    return out;
  }

  // `tight`: the result is a factor of a product.
  std::string Term(bool tight, int depth) {
    Skip();
    if (depth > kDeepest || at >= text.size()) return ok = false, "";
    if (text[at] == '\'') return Quoted();
    std::string name = Word();
    if (at >= text.size() || text[at] != '(') {
      if (at < text.size() && text[at] == '=') return ++at, Term(false, depth + 1), "";
      return name;
    }
    ++at;
    bool product = name == "Mul", sum = name == "Add";
    std::vector<std::string> parts;
    for (Skip(); ok && at < text.size() && text[at] != ')'; Skip()) {
      std::string part = Term(product, depth + 1);
      if (!part.empty()) parts.push_back(part);  // keyword arguments yield nothing
      Skip();
      if (at < text.size() && text[at] == ',') ++at;
    }
    if (at++ >= text.size()) ok = false;
    if ((name == "Symbol" || name == "Integer" || name == "Float") && !parts.empty())
      return parts[0];
    std::string out = product || sum ? "" : name + "(";
    for (size_t i = 0; i < parts.size(); ++i)
      out += (i ? (product ? "*" : sum ? " + " : ", ") : "") + parts[i];
    if (!product && !sum) return out + ")";
    return sum && tight ? "(" + out + ")" : out;
  }
};

}  // namespace

std::string SizeExpression(const std::string& srepr) {
  Reader reader{srepr};
  std::string out = reader.Term(false, 0);
  return reader.ok && reader.at == srepr.size() ? out : srepr;
}

}  // namespace pipewright
