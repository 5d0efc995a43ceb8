#include "ops/module_text.h"

#include <c10/core/ScalarType.h>
#include <caffe2/serialize/versions.h>
#include <torch/csrc/jit/frontend/error_report.h>
#include <torch/csrc/jit/frontend/lexer.h>
#include <torch/csrc/jit/frontend/parser.h>
#include <torch/csrc/jit/frontend/resolver.h>
#include <torch/csrc/jit/frontend/script_type_parser.h>
#include <torch/csrc/jit/frontend/sugared_value.h>

#include <limits>
#include <map>

#include "base/error.h"
#include "base/text.h"
#include "base/torch_error.h"

namespace pipewright {

using torch::jit::ErrorReport;
using torch::jit::GraphFunction;
using torch::jit::SourceRange;
using torch::jit::SugaredValue;

namespace {

constexpr uint64_t kVersion = caffe2::serialize::kProducedFileFormatVersion;

const std::map<std::string, int64_t>& MemoryFormats() {
  static const std::map<std::string, int64_t> formats = {
      {"contiguous_format", static_cast<int64_t>(at::MemoryFormat::Contiguous)},
      {"preserve_format", static_cast<int64_t>(at::MemoryFormat::Preserve)},
      {"channels_last", static_cast<int64_t>(at::MemoryFormat::ChannelsLast)},
      {"channels_last_3d", static_cast<int64_t>(at::MemoryFormat::ChannelsLast3d)}};
  return formats;
}

std::optional<int64_t> NamedConstant(const std::string& name) {
  if (auto found = c10::getStringToDtypeMap().find(name); found != c10::getStringToDtypeMap().end())
    return static_cast<int64_t>(found->second);
  if (auto found = MemoryFormats().find(name); found != MemoryFormats().end())
    return found->second;
  if (name == "strided") return static_cast<int64_t>(at::kStrided);
  return std::nullopt;
}

// The namespace `torch`.
struct TorchNames : torch::jit::BuiltinModule {
  TorchNames() : BuiltinModule("aten", kVersion) {}

  std::shared_ptr<SugaredValue> attr(const SourceRange& range, GraphFunction& function,
                                     const std::string& name) override {
    const std::optional<int64_t> constant = NamedConstant(name);
    if (!constant || !torch::jit::getAllOperatorsFor(c10::Symbol::aten(name)).empty())
      return BuiltinModule::attr(range, function, name);
    return std::make_shared<torch::jit::SimpleValue>(
        function.graph()->insertConstant(*constant, range));
  }
};

// The namespace `ops`, whose members are namespaces of operators.
struct OperatorNames : SugaredValue {
  std::string kind() const override { return "ops"; }

  std::shared_ptr<SugaredValue> attr(const SourceRange&, GraphFunction&,
                                     const std::string& name) override {
    return std::make_shared<torch::jit::BuiltinModule>(name, kVersion);
  }
};

// Resolves names that need no definition: those in archives that torch.jit.save writes.
struct KnownNames : torch::jit::Resolver {
  explicit KnownNames(std::shared_ptr<torch::jit::CompilationUnit> unit) : unit(std::move(unit)) {}

  // Resolves `self: __torch__.Module0`, as written by older builds.
  c10::TypePtr resolveType(const std::string& name, const SourceRange&) override {
    return unit->get_type(c10::QualifiedName(name));
  }

  std::shared_ptr<SugaredValue> resolveValue(const std::string& name, GraphFunction& function,
                                             const SourceRange& range) override {
    using torch::jit::SpecialFormValue;
    auto number = [&](const c10::IValue& value) {
      return std::make_shared<torch::jit::SimpleValue>(
          function.graph()->insertConstant(value, range));
    };
    constexpr double kInf = std::numeric_limits<double>::infinity();
    constexpr double kNan = std::numeric_limits<double>::quiet_NaN();
    if (name == "torch") return std::make_shared<TorchNames>();
    if (name == "ops") return std::make_shared<OperatorNames>();
    if (name == "annotate") return SpecialFormValue::create(torch::jit::prim::annotate);
    if (name == "unchecked_cast") return SpecialFormValue::create(torch::jit::prim::unchecked_cast);
    if (name == "uninitialized") return SpecialFormValue::create(torch::jit::prim::Uninitialized);
    if (name == "inf") return number(kInf);
    if (name == "nan") return number(kNan);
    if (name == "infj") return number(c10::complex<double>(0, kInf));
    if (name == "nanj") return number(c10::complex<double>(0, kNan));
    return nullptr;
  }

  std::shared_ptr<torch::jit::CompilationUnit> unit;
};

const char kOneClass[] = "a module's file holds one class";

// Returns the only class of the text.
torch::jit::ClassDef ParseClass(torch::jit::Parser& parser, const std::string& name) {
  std::optional<torch::jit::ClassDef> found;
  while (parser.lexer().cur().kind != torch::jit::TK_EOF) {
    const torch::jit::Token token = parser.lexer().cur();
    if (token.kind == torch::jit::TK_CLASS_DEF) {
      torch::jit::ClassDef made(parser.parseClass());
      if (found || made.name().name() != name)
        throw ErrorReport(made.name().range())
            << kOneClass << ", " << name
            << ", which is what is run: write helpers as methods of it";
      found.emplace(made);
      continue;
    }
    const bool import = token.kind == torch::jit::TK_IMPORT || token.text() == "from";
    throw ErrorReport(token.range)
        << (import ? "a module cannot import anything: use functions of torch, which is available"
                   : std::string(kOneClass) + " and nothing beside it: write helpers as methods");
  }
  if (!found) throw std::runtime_error("it declares no class " + name + ", which is what is run");
  if (!found->superclass().present())
    throw ErrorReport(found->name().range()) << "write: class " << name << "(Module):";
  return *found;
}

std::set<std::string> NamesIn(const torch::jit::Expr& list) {
  std::set<std::string> names;
  for (const torch::jit::Expr& name : torch::jit::ListLiteral(list.get()).inputs())
    names.insert(torch::jit::StringLiteral(name.get()).text());
  return names;
}

// Handles an assignment in the class body: a declaration or a constant.
void Declare(const torch::jit::Assign& assign, const torch::jit::ScriptTypeParser& types,
             CompiledText& made) {
  const torch::jit::Expr left = assign.lhs();
  if (left.kind() == torch::jit::TK_SUBSCRIPT) {  // __annotations__["0.weight"] = Tensor
    const torch::jit::Subscript subscript(left.get());
    if (subscript.value().kind() == torch::jit::TK_VAR &&
        torch::jit::Var(subscript.value().get()).name().name() == "__annotations__" &&
        subscript.subscript_exprs().size() == 1) {
      made.declared.insert(torch::jit::StringLiteral(subscript.subscript_exprs()[0].get()).text());
      return;
    }
  }
  if (left.kind() == torch::jit::TK_VAR) {
    const std::string name = torch::jit::Var(left.get()).name().name();
    if (name == "__annotations__" || name == "__buffers__") return;
    if (name == "__parameters__") {
      made.parameters = NamesIn(assign.rhs().get());
      return;
    }
    if (!assign.rhs().present()) {  // weight : Tensor
      made.declared.insert(name);
      return;
    }
    if (assign.type().present()) {  // scale : Final[float] = 0.5
      made.type->addConstant(name,
                             torch::jit::ScriptTypeParser(types).parseClassConstant(assign));
      return;
    }
  }
  throw ErrorReport(assign.range())
      << "a class holds methods and weights: write constants where they are used";
}

bool IsText(const torch::jit::Stmt& statement) {
  return statement.kind() == torch::jit::TK_EXPR_STMT &&
         torch::jit::ExprStmt(statement.get()).expr().kind() == torch::jit::TK_STRINGLITERAL;
}

// Returns the last statement of forward.
std::optional<torch::jit::Stmt> EndOfForward(const torch::jit::ClassDef& definition) {
  for (const torch::jit::Stmt& statement : definition.body()) {
    if (statement.kind() != torch::jit::TK_DEF) continue;
    const torch::jit::Def method(statement.get());
    const auto body = method.statements();
    if (method.name().name() != "forward" || body.size() == 0) continue;
    return body[body.size() - 1];
  }
  return std::nullopt;
}

void FindWrites(const torch::jit::TreeRef& tree, std::vector<CompiledText::Write>& writes) {
  using namespace torch::jit;
  auto add = [&](const std::string& what) {
    if (auto place = tree->range().file_line_col())
      writes.push_back({static_cast<int>(std::get<1>(*place)), what});
  };
  if (tree->kind() == TK_APPLY) {
    if (const Expr callee = Apply(tree).callee(); callee.kind() == '.') {
      const std::string name = Select(callee.get()).selector().name();
      const Expr of = Select(callee.get()).value();
      const bool own = of.kind() == TK_VAR && Var(of.get()).name().name() == "self";
      if (!own && name.ends_with("_") && !name.ends_with("__")) add(name);
    }
  } else if (tree->kind() == TK_AUG_ASSIGN) {
    add(kindToString(AugAssign(tree).aug_op()) + "=");
  } else if (tree->kind() == TK_ASSIGN) {
    for (const Expr& left : Assign(tree).lhs_list())
      if (left.kind() == TK_SUBSCRIPT) add("[...] =");
  }
  for (const TreeRef& part : tree->trees()) FindWrites(part, writes);
}

void Define(const torch::jit::ClassDef& definition, const std::string& name,
            const std::vector<std::string>& weights, CompiledText& made) {
  const auto names = std::make_shared<KnownNames>(made.unit);
  const torch::jit::ScriptTypeParser types(names);
  const c10::QualifiedName qualified("__torch__." + name);
  made.type = c10::ClassType::create(qualified, made.unit, /*is_module=*/true);
  for (const std::string& weight : weights)
    made.type->addAttribute(weight, c10::TensorType::get());
  if (!made.type->hasAttribute("training"))
    made.type->addAttribute("training", c10::BoolType::get());
  if (!made.type->hasAttribute("device"))
    made.type->addAttribute("device", c10::DeviceObjType::get());
  std::vector<torch::jit::Def> methods;
  std::set<std::string> method_names;
  for (const torch::jit::Stmt& statement : definition.body()) {
    if (statement.kind() == torch::jit::TK_DEF) {
      methods.emplace_back(statement.get());
      FindWrites(statement.get(), made.writes);
      if (!method_names.insert(methods.back().name().name()).second)
        throw ErrorReport(methods.back().name().range())
            << "the class has two methods of this name";
    } else if (statement.kind() == torch::jit::TK_ASSIGN) {
      Declare(torch::jit::Assign(statement.get()), types, made);
    } else if (statement.kind() != torch::jit::TK_PASS && !IsText(statement)) {
      throw ErrorReport(statement.range()) << "a class holds methods and weights only";
    }
  }
  if (!method_names.count("forward"))
    throw ErrorReport(definition.name().range())
        << "it has no method forward, which is what is run";
  const std::optional<torch::jit::Stmt> last = EndOfForward(definition);
  if (last && last->kind() == torch::jit::TK_RETURN)
    if (auto place = last->range().file_line_col())
      made.return_line = static_cast<int>(std::get<1>(*place));
  made.unit->register_type(made.type);
  const torch::jit::SimpleSelf self(made.type);
  try {
    made.unit->define(qualified, {}, {}, methods,
                      std::vector<torch::jit::ResolverPtr>(methods.size(), names), &self,
                      /*shouldMangle=*/false, kVersion);
    made.forward = &made.type->getMethod("forward");
    made.forward->ensure_defined();
    if (made.forward->getSchema().returns().at(0).type()->kind() != c10::TypeKind::NoneType)
      return;
  } catch (const std::exception& e) {
    if (std::string(e.what()).find("does not return along all paths") == std::string::npos) throw;
  }
  throw ErrorReport(last ? last->range() : definition.name().range())
      << "forward returns nothing on some path: end it with `return` and the outputs";
}

// Returns the parser's message about `text`. Adds a caret where the parser draws none: at the end
// of a line with a missing token, and at an indentation. Adds a hint for code that is Python but
// not TorchScript.
std::string ParserSays(const std::string& said, const std::string& text) {
  std::string out = said;
  const std::string line_key = "\", line ";
  const size_t at = said.find(line_key);
  if (at != std::string::npos && said.find("<--- HERE") == std::string::npos) {
    const std::vector<std::string> lines = Split(text, '\n');
    size_t number = std::strtoul(&said[at + line_key.size()], nullptr, 10);
    const bool missing = said.rfind("expected", 0) == 0;
    auto start = [&] { return lines[number - 1].find_first_not_of(" \t\r"); };
    auto skip = [&] { return start() == std::string::npos || lines[number - 1][start()] == '#'; };
    if (number >= 1 && number <= lines.size()) {
      // A token missing before an indented line is missing at the end of the previous line.
      if (missing && said.find("found 'indent'") != std::string::npos)
        do --number;
        while (number > 1 && skip());
      number = std::max<size_t>(number, 1);
      const std::string& line = lines[number - 1];
      const size_t end = line.find_last_not_of(" \t\r") + 1;
      while (!out.empty() && std::isspace(static_cast<unsigned char>(out.back()))) out.pop_back();
      out += "\nline " + std::to_string(number) + ":\n" + line + "\n" +
             std::string(missing ? end : std::min(start(), end), ' ') + "~ <--- HERE";
    }
  }
  // Looks only at the line that the caret points at; comments around it name functions of the
  // model.
  const size_t caret = said.rfind('\n', said.find("<--- HERE"));
  const size_t begin = caret == std::string::npos || caret == 0 ? 0 : said.rfind('\n', caret - 1);
  if (said.find("undefined value F:") != std::string::npos ||
      (begin != std::string::npos &&
       said.substr(begin, caret - begin).find("torch.nn.functional.") != std::string::npos))
    out += "\nmodules are TorchScript: write torch.relu(x) for F.relu(x), and so on";
  if (said.find("but found 'import' here") != std::string::npos)
    out += "\na module cannot import anything; torch is available";
  if (said.rfind("builtin cannot be used as a value", 0) == 0)
    out += "\ntorch has no such dtype or constant: write torch.float32, torch.bfloat16, "
           "torch.int64, and so on";
  if (said.find("Unknown builtin op: aten::no_grad") != std::string::npos)
    out += "\nwrite torch.detach(x), or torch.set_grad_enabled(False) before and "
           "torch.set_grad_enabled(True) after";
  if (said.rfind("Return value was annotated as ", 0) == 0)
    out += "\nreturn what the comment at the head of the file lists as \"out\", in that order";
  if (said.rfind("undefined value ", 0) == 0) {
    const std::string name = said.substr(16, said.find(':') - 16);
    const size_t raise = out.find("raise ");
    if (raise != std::string::npos && out.compare(raise + 6, name.size(), name) == 0)
      out +=
          "\nmodules are TorchScript, which raises AssertionError alone: assert CONDITION, \"why\"";
    else if (name == "math")
      out += "\nmath is not available in modules: write the number, or use the torch function";
    else if (name != "F")
      out += "\na module can use its inputs, self, torch, and names assigned earlier";
  }
  return out;
}

}  // namespace

// Throws Error for an import, on which the parser fails with an internal assertion.
static void RefuseImport(const std::string& file, const std::string& text) {
  const std::vector<std::string> lines = Split(text, '\n');
  for (size_t i = 0; i < lines.size(); ++i) {
    const size_t at = lines[i].find_first_not_of(' ');
    if (at != std::string::npos && lines[i].compare(at, 5, "from ") == 0 &&
        lines[i].find(" import ") != std::string::npos)
      throw Error(file + ":" + std::to_string(i + 1), "does not compile: " + lines[i].substr(at),
                  "a module cannot import anything; torch is available");
  }
}

CompiledText CompileText(const std::string& file, const std::string& text, const std::string& name,
                         const std::vector<std::string>& weights) {
  CompiledText made;
  made.unit = std::make_shared<torch::jit::CompilationUnit>();
  try {
    torch::jit::Parser parser(std::make_shared<torch::jit::Source>(text, file, 1));
    Define(ParseClass(parser, name), name, weights, made);
  } catch (const std::exception& e) {
    if (std::string(e.what()).find("INTERNAL ASSERT") != std::string::npos)
      RefuseImport(file, text);
    throw Error(file, "does not compile\n" + ParserSays(WithoutBacktrace(e.what()), text));
  }
  return made;
}

std::string ModelLine(const std::string& text, const std::string& file,
                      const std::string& message) {
  const std::string before = "File \"" + file + "\", line ";
  const size_t at = message.rfind(before);
  if (at == std::string::npos) return "";
  const std::vector<std::string> lines = Split(text, '\n');
  size_t i = std::strtoul(message.c_str() + at + before.size(), nullptr, 10);
  std::string submodule;  // from a comment without a line, which it shares with the previous one
  for (i = std::min(i, lines.size()); i-- > 0;) {
    const size_t begin = lines[i].find_first_not_of(' ');
    if (begin == std::string::npos) continue;
    if (lines[i].compare(begin, 4, "def ") == 0) break;
    if (lines[i].compare(begin, 2, "# ") != 0) continue;
    const std::string comment = lines[i].substr(begin + 2);
    const size_t space = comment.find("  "), place = space == std::string::npos ? 0 : space + 2;
    if (comment.find(": ", place) == std::string::npos) {
      if (submodule.empty()) submodule = comment;
    } else {
      return submodule.empty() ? comment : submodule + "  " + comment.substr(place);
    }
  }
  return submodule;
}

std::string ConstantName(c10::TypeKind kind, int64_t number) {
  if (kind == c10::TypeKind::ScalarTypeType && number >= 0 &&
      number < static_cast<int64_t>(c10::ScalarType::Undefined)) {
    const std::string name(c10::getDtypeNames(static_cast<c10::ScalarType>(number)).first);
    if (NamedConstant(name) == number) return "torch." + name;
  }
  if (kind == c10::TypeKind::MemoryFormatType)
    for (const auto& [name, format] : MemoryFormats())
      if (format == number) return "torch." + name;
  if (kind == c10::TypeKind::LayoutType && number == static_cast<int64_t>(at::kStrided))
    return "torch.strided";
  return "";
}

}  // namespace pipewright
