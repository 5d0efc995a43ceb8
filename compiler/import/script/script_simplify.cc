// A part of script_graph.h: rewrites what TorchScript adds and the model does not need.
#include <c10/util/Exception.h>
#include <torch/csrc/jit/ir/alias_analysis.h>
#include <torch/csrc/jit/ir/constants.h>
#include <torch/csrc/jit/passes/constant_propagation.h>
#include <torch/csrc/jit/passes/lower_tuples.h>
#include <torch/csrc/jit/passes/peephole.h>
#include <torch/csrc/jit/passes/peephole_dict_idioms.h>
#include <torch/csrc/jit/passes/peephole_list_idioms.h>
#include <torch/csrc/jit/passes/remove_exceptions.h>
#include <torch/csrc/jit/passes/remove_mutation.h>

#include "compiler/import/script/script_graph.h"
#include "passes/dead_code.h"
#include "passes/split/show_writes.h"

namespace pipewright {

using torch::jit::Node;
using torch::jit::Value;
namespace prim = torch::jit::prim;

namespace {

using GraphPtr = std::shared_ptr<torch::jit::Graph>;

void DropWarnings(const GraphPtr& graph) {
  for (Node* node : AllNodes(*graph))
    if (node->kind() == c10::Symbol::aten("warn")) node->destroy();
}

// Replaces x.shape[1] and a, b = x.shape by operations that read each size separately.
void TakeSizesApart(const GraphPtr& graph) {
  for (Node* node : AllNodes(*graph)) {
    bool item = node->kind() == c10::aten::__getitem__, unpack = node->kind() == prim::ListUnpack;
    if (!item && !unpack) continue;
    Node* sizes = node->input(0)->node();
    if (sizes->kind() != c10::aten::size || sizes->inputs().size() != 1) continue;
    auto index = item ? torch::jit::constant_as<int64_t>(node->input(1)) : std::nullopt;
    if (item && !index) continue;
    // Right after it, anything that changes the shape in place is still to come. A branch may read
    // a dimension only if it is there.
    torch::jit::WithInsertPoint there(sizes->owningBlock() == node->owningBlock() ? sizes->next()
                                                                                  : node);
    for (size_t i = 0; i < node->outputs().size(); ++i) {
      Value* dimension = graph->insertConstant(item ? *index : static_cast<int64_t>(i));
      Node* size =
          graph->insertNode(graph->create(c10::aten::size, {sizes->input(0), dimension}, 1));
      size->output()->setType(c10::IntType::get());
      size->copyMetadata(node);
      if (node->outputs()[i]->hasDebugName())
        size->output()->setDebugName(node->outputs()[i]->debugName());
      node->outputs()[i]->replaceAllUsesWith(size->output());
    }
  }
}

// Takes elements of lists, tuples and dicts where the list is made, so that no cut separates the
// two: a list cannot leave a module, but its elements can.
void TakeElementsEarly(const GraphPtr& graph) {
  torch::jit::AliasDb aliases(graph);
  for (Node* node : AllNodes(*graph)) {
    bool takes = node->kind() == c10::aten::__getitem__ || node->kind() == prim::ListUnpack ||
                 node->kind() == prim::TupleIndex || node->kind() == prim::TupleUnpack ||
                 node->kind() == c10::aten::len;
    if (!takes || node->inputs().empty()) continue;
    Value* list = node->input(0);
    auto kind = list->type()->kind();
    if (kind != c10::TypeKind::ListType && kind != c10::TypeKind::TupleType &&
        kind != c10::TypeKind::DictType)
      continue;
    Node* maker = list->node();
    if (maker->kind() == prim::Param || maker->kind() == prim::Constant ||
        maker->owningBlock() != node->owningBlock() || aliases.hasWriters(list))
      continue;
    bool constant = true;
    for (size_t i = 1; i < node->inputs().size(); ++i)
      constant = constant && node->input(i)->node()->kind() == prim::Constant;
    if (!constant) continue;
    node->moveAfter(maker);
    for (size_t i = 1; i < node->inputs().size(); ++i) {
      torch::jit::WithInsertPoint before(node);
      node->replaceInput(i, graph->insertConstant(*torch::jit::toIValue(node->input(i))));
    }
  }
}

// Gives each output of an Uninitialized node its own node: LowerAllTuples leaves several outputs
// for a tuple, but TorchScript code needs one each.
void SplitUninitialized(const GraphPtr& graph) {
  for (Node* node : AllNodes(*graph)) {
    if (node->kind() != prim::Uninitialized || node->outputs().size() == 1) continue;
    torch::jit::WithInsertPoint before(node);
    for (Value* output : node->outputs()) {
      Node* made = graph->insertNode(graph->createUninitialized(output->type()));
      made->copyMetadata(node);
      output->replaceAllUsesWith(made->output());
    }
    node->destroy();
  }
}

}  // namespace

void SimplifyScript(GraphPtr& graph) {
  // LibTorch warns of tuples that it keeps; what they mean for the model is told later.
  struct Silent : c10::WarningHandler {
    void process(const c10::Warning&) override {}
  } silent;
  const c10::WarningUtils::WarningHandlerGuard guard(&silent);
  DropWarnings(graph);
  ShowWrites(graph);
  for (int round = 0; round < 3; ++round) {
    torch::jit::ConstantPropagationImmutableTypes(graph);
    torch::jit::PeepholeOptimize(graph, /*disable_shape_peepholes=*/true);
    torch::jit::LowerSimpleTuples(graph);
    if (round == 0) torch::jit::EliminateExceptions(graph);
    torch::jit::RemoveListMutation(graph);
    torch::jit::PeepholeOptimizeListIdioms(graph, /*refine_list_len=*/false);
    torch::jit::PeepholeOptimizeDictIdioms(graph);
    TakeSizesApart(graph);
    RemoveDeadCode(*graph);
  }
  try {  // stops halfway if a list contains a tuple
    GraphPtr copy = graph->copy();
    torch::jit::LowerAllTuples(copy);
    graph = copy;
    SplitUninitialized(graph);
  } catch (const std::exception&) {
  }
  HideWrites(*graph);
  TakeElementsEarly(graph);
  RemoveDeadCode(*graph);
}

}  // namespace pipewright
