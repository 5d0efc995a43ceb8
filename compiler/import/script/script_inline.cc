// A part of script_graph.h: inlines calls of methods and functions.
#include <map>

#include "base/error.h"
#include "base/text.h"
#include "compiler/import/script/script_graph.h"

namespace pipewright {

using torch::jit::Block;
using torch::jit::Node;
using torch::jit::Value;
namespace prim = torch::jit::prim;

bool ObjectTree::PathOf(const Value* value, std::string& path) {
  std::vector<std::string> names;
  while (value->node()->kind() == prim::GetAttr) {
    names.push_back(value->node()->s(c10::attr::name));
    value = value->node()->input();
  }
  if (value->node()->kind() != prim::Param || *value->type() != *objects_.at("")->type())
    return false;
  path.clear();
  for (size_t i = names.size(); i-- > 0;) {
    std::string outer = path;
    path += (path.empty() ? "" : ".") + names[i];
    if (objects_.count(path)) continue;
    at::IValue attribute = objects_.at(outer)->getAttr(names[i]);
    if (!attribute.isObject()) return false;
    objects_[path] = attribute.toObject();
  }
  return true;
}

namespace {

constexpr size_t kMostNodes = 5'000'000;

class Inliner {
 public:
  Inliner(torch::jit::Graph& graph, ObjectTree& objects, const std::string& file)
      : graph_(graph), objects_(objects), file_(file) {}

  void Run() {
    Scope(*graph_.nodes().begin(), graph_.return_node(), root_);
    Node* node = FirstFrom(*graph_.nodes().begin());
    while (node) {
      Node* before = node->prev();
      if (!Inline(node)) {
        node = NextNode(node);
        continue;
      }
      // The first inlined node, or the next one if nothing was inlined.
      node = FirstFrom(before->next());
    }
  }

 private:
  [[noreturn]] void Refuse(const Node* node, const std::string& what, const std::string& cure) {
    throw Error(file_ + ": " + Origin(node), what, cure);
  }

  // Sets scope and line of the nodes from `first` up to `last` (exclusive), and inside them.
  void Scope(Node* first, Node* last, const torch::jit::ScopePtr& scope) {
    std::vector<std::pair<Node*, Node*>> spans = {{first, last}};
    while (!spans.empty()) {
      auto [node, end] = spans.back();
      spans.pop_back();
      for (; node != end; node = node->next()) {
        if (++nodes_ > kMostNodes)
          throw Error(file_, "has more than " + std::to_string(kMostNodes) + " operations");
        node->setScope(scope);
        node->setSourceRange(ModelLine(node));
        for (Block* block : node->blocks())
          spans.emplace_back(*block->nodes().begin(), block->return_node());
      }
    }
  }

  // Returns the line of the model for `node`; for code inside torch, the line that called it.
  torch::jit::SourceRange ModelLine(Node* node) {
    std::vector<torch::jit::SourceRange> ranges = {node->sourceRange()};
    if (node->callstack()) {
      auto calls = (*node->callstack())->vec();
      for (auto call = calls.rbegin(); call != calls.rend(); ++call)
        ranges.push_back(std::get<1>(*call));
    }
    torch::jit::SourceRange found;
    for (const torch::jit::SourceRange& range : ranges) {
      if (!range.source()) continue;
      torch::jit::SourceRange line = Written(range);
      if (!line.source()) continue;
      const std::string& file = *line.source()->filename();
      bool library = file.find("/torch/") != std::string::npos || file.rfind("torch/", 0) == 0;
      if (!found.source() || !library) found = line;
      if (!library) break;
    }
    return found;
  }

  // Returns the model's own line from the calls that a trace recorded for an operation, innermost
  // first ("model.py(31): forward"); for torch's modules, the line that called them.
  static std::optional<torch::jit::SourceRange> Traced(const std::string& calls) {
    std::optional<torch::jit::SourceRange> found;
    for (const std::string& call : Split(calls, '\n')) {
      size_t close = call.rfind("): "), open = call.rfind('(', close);
      if (call.empty() || close == std::string::npos || open == std::string::npos) break;
      const std::string file = call.substr(0, open),
                        digits = call.substr(open + 1, close - open - 1);
      if (digits.empty() || digits.find_first_not_of("0123456789") != std::string::npos) break;
      bool library = file.find("/torch/") != std::string::npos || file.rfind("torch/", 0) == 0;
      if (found && library) continue;
      auto source =
          std::make_shared<torch::jit::Source>("", file, std::strtoul(digits.c_str(), nullptr, 10));
      found = torch::jit::SourceRange(source, 0, 0);
      if (!library) break;
    }
    return found;
  }

  // Returns one line of text with its line number in its file.
  torch::jit::SourceRange Written(const torch::jit::SourceRange& range) {
    const auto& file = range.source()->filename();
    if (!file || file->empty()) return {};
    if (file->rfind("code/", 0) != 0) return range;  // already such a line
    auto [at, fresh] = lines_.try_emplace({range.source().get(), range.start()});
    if (!fresh) return at->second;
    auto from = range.findSourceRangeThatGenerated();
    if (!from || !from->source() || !from->source()->filename()) return {};
    auto place = from->file_line_col();
    if (!place || std::get<0>(*place).empty()) return {};
    if (auto traced = Traced(from->source()->text_str().str())) return at->second = *traced;
    size_t row = from->source()->lineno_for_offset(from->start());
    std::string code = from->source()->get_line(row).str();
    code.erase(0, code.find_first_not_of(' '));
    while (!code.empty() && (code.back() == '\n' || code.back() == ' ')) code.pop_back();
    auto source =
        std::make_shared<torch::jit::Source>(code, std::get<0>(*place), std::get<1>(*place));
    return at->second = torch::jit::SourceRange(source, 0, code.size());
  }

  bool Inline(Node* node) {
    torch::jit::Function* callee = nullptr;
    torch::jit::ScopePtr scope = node->scope();
    if (node->kind() == prim::CallFunction) {
      callee = node->input(0)->type()->expect<c10::FunctionType>()->function();
      node->removeInput(0);
    } else if (node->kind() == prim::CallMethod) {
      const std::string& name = node->s(c10::attr::name);
      std::string path;
      if (objects_.PathOf(node->input(0), path)) {
        const auto& object = objects_.At(path);
        callee = object->type()->findMethod(name);
        if (!path.empty() && object->type()->is_module() &&
            !(scope && !scope->isRoot() && Plain(scope->name().toUnqualString()) == path)) {
          int call = calls_[path]++;
          scope = scope->push(c10::Symbol::scope(call ? path + "@" + std::to_string(call) : path));
        }
      } else if (auto type = node->input(0)->type()->cast<c10::ClassType>();
                 type && !type->is_module()) {
        callee = type->findMethod(name);
      } else {
        Refuse(node, "calls a submodule that is chosen while the model runs",
               "call submodules by name, or loop over a ModuleList without an index");
      }
    } else if (node->kind() == prim::fork || node->kind() == prim::rpc_async) {
      Refuse(node, "runs a part of the model asynchronously", "call it directly");
    } else {
      return false;
    }
    torch::jit::GraphFunction* function =
        callee ? torch::jit::tryToGraphFunction(*callee) : nullptr;
    if (!function) Refuse(node, "calls a function that has no graph", "");
    Node *before = node->prev(), *after = node->next();
    torch::jit::inlineCallTo(node, function, /*use_graph=*/false);
    Scope(before->next(), after, scope);
    return true;
  }

  static std::string Plain(const std::string& path) { return path.substr(0, path.find('@')); }

  torch::jit::Graph& graph_;
  ObjectTree& objects_;
  const std::string& file_;
  size_t nodes_ = 0;
  torch::jit::ScopePtr root_ = c10::make_intrusive<torch::jit::Scope>();
  std::unordered_map<std::string, int> calls_;
  std::map<std::pair<const torch::jit::Source*, size_t>, torch::jit::SourceRange> lines_;
};

}  // namespace

void InlineCalls(torch::jit::Graph& graph, ObjectTree& objects, const std::string& file) {
  Inliner(graph, objects, file).Run();
}

void ReplaceContexts(torch::jit::Graph& graph, const std::string& file) {
  std::vector<bool> outer = {true};
  std::vector<Node*> dead;
  for (Node* node : AllNodes(graph)) {
    if (node->kind() != prim::Enter && node->kind() != prim::Exit) continue;
    auto type = node->input(0)->type()->cast<c10::ClassType>();
    const std::string name = type && type->name() ? type->name()->qualifiedName() : "";
    bool off = name == "__torch__.torch.autograd.grad_mode.no_grad";
    if (!off && name != "__torch__.torch.autograd.grad_mode.enable_grad")
      throw Error(file + ": " + Origin(node),
                  "enters the context " + (name.empty() ? "of a value" : name.substr(10)) +
                      ", which is not supported",
                  "torch.no_grad() and torch.enable_grad() are");
    if (node->kind() == prim::Enter)
      outer.push_back(!off);
    else if (outer.size() > 1)
      outer.pop_back();
    torch::jit::WithInsertPoint before(node);
    Node* made = graph.insertNode(graph.create(c10::Symbol::aten("set_grad_enabled"),
                                               {graph.insertConstant(bool(outer.back()))}, 0));
    made->copyMetadata(node);
    dead.push_back(node);
  }
  // The nodes that made the context object are no longer read.
  for (Node* node : dead) {
    Value* object = node->input(0);
    if (node->kind() == prim::Enter) {
      for (Value* output : node->outputs()) TORCH_CHECK(!output->hasUses(), "context is used");
    }
    node->destroy();
    if (object->node()->kind() != prim::CreateObject) continue;
    std::vector<Node*> users;
    for (const auto& use : object->uses()) users.push_back(use.user);
    bool only_set = true;
    for (Node* user : users) only_set = only_set && user->kind() == prim::SetAttr;
    if (!only_set) continue;
    for (Node* user : users) user->destroy();
    object->node()->destroy();
  }
}

}  // namespace pipewright
