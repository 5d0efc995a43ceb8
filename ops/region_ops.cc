#include "ops/region_ops.h"

#include <ATen/ATen.h>
#include <ATen/autocast_mode.h>
#include <ATen/functorch/BatchedTensorImpl.h>
#include <ATen/functorch/DynamicLayer.h>
#include <torch/csrc/jit/runtime/operator.h>

#include "base/error.h"

namespace pipewright {

namespace {

namespace functorch = at::functorch;
using torch::jit::Stack;

functorch::RandomnessType RandomnessOf(const std::string& text) {
  if (text == "same") return functorch::RandomnessType::Same;
  if (text == "different") return functorch::RandomnessType::Different;
  return functorch::RandomnessType::Error;
}

void EnterVmap(Stack& stack) {
  const std::string randomness = torch::jit::pop(stack).toStringRef();
  const int64_t size = torch::jit::pop(stack).toInt();
  functorch::initAndPushDynamicLayer(functorch::TransformType::Vmap, c10::SymInt(size),
                                     RandomnessOf(randomness));
}

int64_t Level() {
  auto layer = functorch::maybeCurrentDynamicLayer();
  if (!layer) throw Error("pipewright::vmap_in", "is called outside vmap_enter and vmap_exit");
  return layer->layerId();
}

void MapOver(Stack& stack) {
  const int64_t dim = torch::jit::pop(stack).toInt();
  at::Tensor tensor = torch::jit::pop(stack).toTensor();
  stack.emplace_back(functorch::addBatchDim(tensor, dim, Level()));
}

// Repeats values that do not depend on the mapped dimension.
void Stacked(Stack& stack) {
  const int64_t dim = torch::jit::pop(stack).toInt();
  const int64_t size = torch::jit::pop(stack).toInt();
  at::Tensor tensor = torch::jit::pop(stack).toTensor();
  auto* batched = functorch::maybeGetBatchedImpl(tensor);
  if (batched && batched->level() == Level()) {
    stack.emplace_back(batched->value().movedim(batched->bdim(), dim));
    return;
  }
  std::vector<int64_t> sizes = tensor.sizes().vec();
  sizes.insert(sizes.begin(), size);
  stack.emplace_back(tensor.expand(sizes).movedim(0, dim));
}

void ExitVmap(Stack&) { functorch::popDynamicLayerAndDeleteMetadata(); }

thread_local at::ScalarType t_before = at::kBFloat16;

void EnterAutocast(Stack& stack) {
  const auto dtype = static_cast<at::ScalarType>(torch::jit::pop(stack).toInt());
  const at::DeviceType device = torch::jit::pop(stack).toDevice().type();
  t_before = at::autocast::get_autocast_dtype(device);
  at::autocast::set_autocast_dtype(device, dtype);
  at::autocast::set_autocast_enabled(device, true);
  at::autocast::increment_nesting();
}

void ExitAutocast(Stack& stack) {
  const at::DeviceType device = torch::jit::pop(stack).toDevice().type();
  at::autocast::set_autocast_enabled(device, false);
  at::autocast::set_autocast_dtype(device, t_before);
  if (at::autocast::decrement_nesting() == 0) at::autocast::clear_cache();
}

void Register(const char* schema, void (*operation)(Stack&), c10::AliasAnalysisKind kind) {
  torch::jit::registerOperator(
      torch::jit::Operator(schema, torch::jit::Operation(operation), kind));
}

}  // namespace

bool RegisterRegionOperators() {
  // Conservative, so that nothing is moved across a switch and it is not removed as dead code.
  constexpr auto kSwitch = c10::AliasAnalysisKind::CONSERVATIVE;
  constexpr auto kView = c10::AliasAnalysisKind::FROM_SCHEMA;
  Register("pipewright::vmap_enter(int size, str randomness) -> ()", EnterVmap, kSwitch);
  Register("pipewright::vmap_exit() -> ()", ExitVmap, kSwitch);
  Register("pipewright::vmap_in(Tensor(a) input, int dim) -> Tensor(a)", MapOver, kView);
  Register("pipewright::vmap_out(Tensor(a) input, int size, int dim) -> Tensor(a)", Stacked, kView);
  Register("pipewright::autocast_enter(Device device, int dtype) -> ()", EnterAutocast, kSwitch);
  Register("pipewright::autocast_exit(Device device) -> ()", ExitAutocast, kSwitch);
  // Used by passes/split/show_writes.h.
  for (const char* schema :
       {"pipewright::seen(Tensor value) -> ()", "pipewright::seen.list(Tensor[] value) -> ()"})
    Register(schema, [](Stack& stack) { torch::jit::drop(stack, 1); }, kSwitch);
  return true;
}

int RegionStep(const torch::jit::Node* node, const std::string& kind) {
  if (node->kind() == c10::Symbol::fromQualString("pipewright::" + kind + "_enter")) return 1;
  if (node->kind() == c10::Symbol::fromQualString("pipewright::" + kind + "_exit")) return -1;
  return 0;
}

}  // namespace pipewright
