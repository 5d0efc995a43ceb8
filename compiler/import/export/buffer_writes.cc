#include "compiler/import/export/buffer_writes.h"

#include <algorithm>
#include <map>
#include <set>

#include "passes/graph/memory.h"

namespace pipewright {

// Autograd saves the averages that are passed to a functionalized batch norm and would later find
// them modified, so the norm gets copies.
static void CopyAverages(Model& model, const std::vector<BufferWrite>& writes) {
  static const auto kNorm = c10::Symbol::aten("_native_batch_norm_legit_functional");
  for (torch::jit::Node* node : model.graph->nodes()) {
    if (node->kind() != kNorm) continue;
    for (size_t i = 0; i < node->inputs().size(); ++i)
      for (const auto& [buffer, value] : writes) {
        if (node->input(i) != buffer) continue;
        torch::jit::WithInsertPoint place(node);
        torch::jit::Node* copy = model.graph->insertNode(model.graph->create(
            c10::aten::clone, {buffer, model.graph->insertConstant(c10::IValue())}, 1));
        copy->copyMetadata(node);
        node->replaceInput(i, copy->output());
      }
  }
}

// Finds the last use of each buffer that is written; null if there is none.
static std::map<const torch::jit::Value*, torch::jit::Node*> LastUses(
    Model& model, const std::vector<BufferWrite>& writes) {
  Memory memory(model, Alias::kKnown);
  std::map<const torch::jit::Value*, torch::jit::Node*> last_use;
  for (const auto& [buffer, value] : writes) last_use[buffer] = nullptr;
  for (torch::jit::Node* node : model.graph->nodes())
    for (torch::jit::Node* inner : WithInner(node))
      for (const torch::jit::Value* input : inner->inputs()) {
        if (!HasMemory(input)) continue;
        for (const torch::jit::Value* held : memory.Of(input))
          if (auto found = last_use.find(held); found != last_use.end()) found->second = node;
      }
  return last_use;
}

static torch::jit::Node* Later(torch::jit::Node* a, torch::jit::Node* b) {
  return !a || (b && a->isBefore(b)) ? b : a;
}

// All writes happen at once: a new content in the memory of a buffer that is written, too, is
// copied before. The copy is made where that buffer will be written.
static void CopyOtherBuffers(Model& model, std::vector<BufferWrite>& writes) {
  const torch::jit::Node* given = model.graph->param_node();
  const auto last_use = LastUses(model, writes);
  Memory memory(model, Alias::kKnown);
  Memory::Values written;
  for (const auto& [buffer, value] : writes)
    written.insert(memory.Of(buffer).begin(), memory.Of(buffer).end());
  const std::map<torch::jit::Value*, torch::jit::Value*> content(writes.begin(), writes.end());
  // Returns the node after which the content of a buffer can be replaced.
  auto free_after = [&](torch::jit::Value* buffer) {
    torch::jit::Node* after = nullptr;
    std::set<torch::jit::Value*> seen;
    while (content.count(buffer) && seen.insert(buffer).second) {
      after = Later(after, last_use.at(buffer));
      buffer = content.at(buffer);
    }
    return buffer->node() == given ? after : Later(after, buffer->node());
  };
  std::vector<std::pair<torch::jit::Value**, torch::jit::Node*>> copies;  // after which node
  for (auto& [buffer, value] : writes)
    if (HasMemory(value) && Intersect(memory.Of(value), written))
      copies.emplace_back(&value, value->node() == given ? free_after(value) : value->node());
  for (const auto& [value, after] : copies) {
    torch::jit::WithInsertPoint place(after ? after->next() : *model.graph->nodes().begin());
    torch::jit::Node* copy = model.graph->insertNode(model.graph->create(
        c10::aten::clone, {*value, model.graph->insertConstant(c10::IValue())}, 1));
    if (after) copy->copyMetadata(after);
    if (const std::optional<ValueMeta> meta = model.TensorOf(*value)) {
      copy->output()->setDebugName((*value)->debugName() + "_before");
      model.meta[copy->output()->debugName()] = *meta;
    }
    *value = copy->output();
  }
}

void WriteBack(Model& model, std::vector<BufferWrite> writes) {
  if (writes.empty()) return;
  CopyAverages(model, writes);
  CopyOtherBuffers(model, writes);
  const auto last_use = LastUses(model, writes);
  for (const auto& [buffer, value] : writes) {
    const bool given = value->node() == model.graph->param_node();
    torch::jit::Node* after = Later(given ? nullptr : value->node(), last_use.at(buffer));
    torch::jit::Node* first = *model.graph->nodes().begin();
    torch::jit::WithInsertPoint place(after ? after->next() : first);
    // The new content belongs to the next call, which receives no gradient.
    auto cut_off = [&](torch::jit::Value* of) {
      torch::jit::Node* node =
          model.graph->insertNode(model.graph->create(c10::aten::detach, {of}, 1));
      if (after) node->copyMetadata(after);
      return node->output();
    };
    const bool parameter = model.weights[buffer->offset()].kind == WeightKind::kParameter;
    torch::jit::Node* copy = model.graph->insertNode(model.graph->create(
        c10::Symbol::aten("copy_"),
        {parameter ? cut_off(buffer) : buffer, cut_off(value), model.graph->insertConstant(false)},
        1));
    if (after) copy->copyMetadata(after);
  }
}

std::vector<BufferWrite> TakeAssignments(Model& model) {
  static const auto kCopy = c10::Symbol::aten("copy_");
  Memory memory(model, Alias::kKnown);
  std::vector<Write> changes;
  for (torch::jit::Node* node : model.graph->nodes()) CollectWrites(node, 0, changes);
  auto changed_later = [&](torch::jit::Value* value) {
    return std::any_of(changes.begin(), changes.end(), [&](const Write& change) {
      return Intersect(memory.Written(change), memory.Of(value)) &&
             (value->node() == model.graph->param_node() || change.top->isAfter(value->node()));
    });
  };
  std::vector<BufferWrite> writes;
  std::vector<torch::jit::Node*> taken;
  Memory::Values kept;  // memory of copies that stay
  for (torch::jit::Node* node : model.graph->nodes().reverse()) {
    if (node->kind() == torch::jit::prim::Constant) continue;
    if (node->kind() != kCopy || node->output()->hasUses()) break;
    torch::jit::Value *buffer = node->input(0), *value = node->input(1), *from = value;
    if (buffer->node() != model.graph->param_node() || buffer->offset() >= model.weights.size())
      break;
    while (from != buffer && Returned(from->node())) from = Returned(from->node());
    if (Intersect(memory.Of(buffer), kept) || value->node()->kind() == kCopy ||
        (from != buffer && changed_later(value))) {
      for (const torch::jit::Value* of : {buffer, value})
        kept.insert(memory.Of(of).begin(), memory.Of(of).end());
      continue;
    }
    const bool overwritten =
        std::any_of(writes.begin(), writes.end(),
                    [&](const BufferWrite& later) { return later.first == buffer; });
    if (from != buffer && !overwritten) writes.insert(writes.begin(), {buffer, value});
    taken.push_back(node);
  }
  for (torch::jit::Node* node : taken) node->destroy();
  return writes;
}

}  // namespace pipewright
