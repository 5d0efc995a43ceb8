#include "passes/dead_code.h"

#include <set>

#include "passes/graph/error_context.h"
#include "passes/graph/hidden_memory.h"
#include "passes/graph/memory.h"

namespace pipewright {

using torch::jit::Block;
using torch::jit::Graph;
using torch::jit::Node;
using torch::jit::Value;
namespace prim = torch::jit::prim;

namespace {

// Runs backward from the graph's outputs, so that the live values below a node are known.
class DeadCode {
 public:
  explicit DeadCode(Graph& graph)
      : memory_({graph.nodes().begin(), graph.nodes().end()}, Alias::kUnknown) {
    for (const Value* input : graph.inputs()) Read(input);
    for (const Node* node : AllNodes(graph))  // a backward may read it
      if (HidesMemory(node)) Read(node->input(0));
    for (const Value* output : graph.outputs()) Want(output);
    Mark(graph.block());
    Sweep(graph.block());
  }

 private:
  void Read(const Value* value) {
    if (!HasMemory(value)) return;
    const Memory::Values& in = memory_.Of(value);
    read_.insert(in.begin(), in.end());
  }
  void Want(const Value* value) {
    if (wanted_.insert(value).second) Read(value);
  }
  bool Wanted(const Value* value) const { return wanted_.count(value) > 0; }

  // Returns true if something in the block is alive.
  bool Mark(Block* block) {
    bool any = false;
    for (Node* node : block->nodes().reverse()) any = Mark(node) || any;
    return any;
  }

  bool Mark(Node* node) {
    const ErrorContext here(node);
    bool live = node->hasSideEffects();
    for (const Value* output : node->outputs()) live = live || Wanted(output);
    if (node->kind() == prim::Loop) {
      live = MarkLoop(node, live);
    } else if (!node->blocks().empty()) {
      for (Block* block : node->blocks()) {
        for (size_t i = 0; i < node->outputs().size(); ++i)
          if (Wanted(node->outputs()[i])) Want(block->outputs()[i]);
        live = Mark(block) || live;
      }
      if (live)
        for (const Value* input : node->inputs()) Want(input);
    } else {
      live = live || WritesToRead(node);
      if (live)
        for (const Value* input : node->inputs()) Want(input);
    }
    if (live) live_.insert(node);
    return live;
  }

  // Values needed in one iteration may come from the previous one.
  bool MarkLoop(Node* node, bool live) {
    Block* body = node->blocks()[0];
    for (size_t before = 0; before != wanted_.size() + live_.size();) {
      before = wanted_.size() + live_.size();
      for (size_t i = 0; i < node->outputs().size(); ++i)
        if (Carries(node, i)) Want(body->outputs()[i + 1]);
      live = Mark(body) || live;
      if (live) Want(body->outputs()[0]);
    }
    if (!live) return false;
    for (size_t i = 0; i < node->inputs().size(); ++i)
      if (i < 2 || Carries(node, i - 2)) Want(node->inputs()[i]);
    return true;
  }

  bool Carries(Node* loop, size_t i) const {
    return Wanted(loop->outputs()[i]) || Wanted(loop->blocks()[0]->inputs()[i + 1]);
  }

  bool WritesToRead(Node* node) {
    std::vector<Write> writes;
    CollectWrites(node, 0, writes);
    for (const Write& write : writes)
      if (Intersect(memory_.Written(write), read_)) return true;
    return false;
  }

  void Sweep(Block* block) {
    for (auto it = block->nodes().rbegin(); it != block->nodes().rend();) {
      Node* node = *it++;
      if (!live_.count(node)) {
        node->destroy();
        continue;
      }
      const bool loop = node->kind() == prim::Loop;
      std::vector<size_t> dropped;
      for (size_t i = node->blocks().empty() ? 0 : node->outputs().size(); i-- > 0;) {
        if (loop ? Carries(node, i) : Wanted(node->outputs()[i])) continue;
        dropped.push_back(i);
        node->eraseOutput(i);
        for (Block* inner : node->blocks()) inner->eraseOutput(loop ? i + 1 : i);
        if (loop) node->removeInput(i + 2);
      }
      for (Block* inner : node->blocks()) Sweep(inner);
      if (loop)
        for (size_t i : dropped) node->blocks()[0]->eraseInput(i + 1);
    }
  }

  Memory memory_;
  Memory::Values wanted_, read_;  // live values; memory that live nodes may read
  std::set<const Node*> live_;
};

}  // namespace

void RemoveDeadCode(Graph& graph) { DeadCode{graph}; }

}  // namespace pipewright
