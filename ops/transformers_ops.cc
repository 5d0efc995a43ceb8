#include "ops/transformers_ops.h"

#include <ATen/core/dispatch/Dispatcher.h>
#include <torch/csrc/autograd/custom_function.h>
#include <torch/library.h>

#include <memory>
#include <mutex>

namespace pipewright {

namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

constexpr const char* kGroupedMm = "transformers::grouped_mm_fallback";

void CheckShapes(const at::Tensor& input, const at::Tensor& weight, const at::Tensor& offs) {
  TORCH_CHECK(input.dim() == 2 && weight.dim() == 3 && offs.dim() == 1 &&
                  offs.size(0) == weight.size(0) && input.size(1) == weight.size(1),
              "grouped_mm_fallback: expected input (rows, in), weight (experts, in, out) and offs "
              "(experts), found ",
              input.sizes(), ", ", weight.sizes(), " and ", offs.sizes());
  TORCH_CHECK(offs.scalar_type() == at::kInt || offs.scalar_type() == at::kLong,
              "grouped_mm_fallback: expected offs of int32 or int64, found ", offs.scalar_type());
}

// Visits the groups that have rows: (expert, first row, row after the last).
template <typename Visit>
void ForEachGroup(const at::Tensor& offs, Visit visit) {
  const at::Tensor ends = offs.to(at::kCPU, at::kLong).contiguous();
  int64_t start = 0;
  for (int64_t expert = 0; expert < ends.numel(); ++expert) {
    const int64_t end = ends.const_data_ptr<int64_t>()[expert];
    if (start == end) continue;
    visit(expert, start, end);
    start = end;
  }
}

// The operator and its backward make the same calls as transformers, in the same order, so that
// results are identical to the bit.
at::Tensor GroupedMm(const at::Tensor& input, const at::Tensor& weight, const at::Tensor& offs) {
  CheckShapes(input, weight, offs);
  at::Tensor output = at::zeros({input.size(0), weight.size(2)}, input.options());
  ForEachGroup(offs, [&](int64_t expert, int64_t start, int64_t end) {
    at::Tensor rows = output.slice(0, start, end);
    at::mm_out(rows, input.slice(0, start, end), weight.select(0, expert));
  });
  return output;
}

std::tuple<at::Tensor, at::Tensor> GroupedMmBackward(const at::Tensor& grad_output,
                                                     const at::Tensor& input,
                                                     const at::Tensor& weight,
                                                     const at::Tensor& offs,
                                                     std::array<bool, 2> output_mask) {
  at::Tensor grad_input, grad_weight;
  if (output_mask[0]) grad_input = at::zeros_like(input);
  if (output_mask[1]) grad_weight = at::zeros_like(weight);
  ForEachGroup(offs, [&](int64_t expert, int64_t start, int64_t end) {
    const at::Tensor gradient = grad_output.slice(0, start, end);
    if (output_mask[0]) {
      at::Tensor rows = grad_input.slice(0, start, end);
      at::mm_out(rows, gradient, weight.select(0, expert).t());
    }
    if (output_mask[1]) {
      at::Tensor matrix = grad_weight.select(0, expert);
      at::mm_out(matrix, input.slice(0, start, end).t(), gradient);
    }
  });
  return {grad_input, grad_weight};
}

struct GroupedMmFunction : torch::autograd::Function<GroupedMmFunction> {
  static at::Tensor forward(AutogradContext* context, const at::Tensor& input,
                            const at::Tensor& weight, const at::Tensor& offs) {
    static const auto forward_op = c10::Dispatcher::singleton()
                                       .findSchemaOrThrow(kGroupedMm, "")
                                       .typed<decltype(GroupedMm)>();
    context->save_for_backward({input, weight, offs});
    at::AutoDispatchBelowADInplaceOrView below;
    return forward_op.call(input, weight, offs);
  }

  static variable_list backward(AutogradContext* context, const variable_list& gradients) {
    static const auto backward_op = c10::Dispatcher::singleton()
                                        .findSchemaOrThrow("pipewright::grouped_mm_backward", "")
                                        .typed<decltype(GroupedMmBackward)>();
    const variable_list saved = context->get_saved_variables();
    auto [input, weight] =
        backward_op.call(gradients[0], saved[0], saved[1], saved[2],
                         {context->needs_input_grad(0), context->needs_input_grad(1)});
    return {input, weight, at::Tensor()};
  }
};

at::Tensor GroupedMmWithGradient(const at::Tensor& input, const at::Tensor& weight,
                                 const at::Tensor& offs) {
  return GroupedMmFunction::apply(input, weight, offs);
}

std::mutex mutex;
std::unique_ptr<torch::Library> registered;

}  // namespace

void RegisterTransformersOperators() {
  std::lock_guard<std::mutex> lock(mutex);
  if (registered || c10::Dispatcher::singleton().findSchema({kGroupedMm, ""})) return;
  auto library = std::make_unique<torch::Library>(torch::Library::FRAGMENT, "transformers",
                                                  std::nullopt, __FILE__, __LINE__);
  library->def("grouped_mm_fallback(Tensor input, Tensor weight, Tensor offs) -> Tensor");
  library->impl("grouped_mm_fallback",
                torch::dispatch(c10::DispatchKey::CompositeExplicitAutograd, TORCH_FN(GroupedMm)));
  library->impl("grouped_mm_fallback",
                torch::dispatch(c10::DispatchKey::Autograd, TORCH_FN(GroupedMmWithGradient)));
  registered = std::move(library);
}

bool IsOwnTransformersOperator(const std::string& name) {
  std::lock_guard<std::mutex> lock(mutex);
  return registered && name == kGroupedMm;
}

}  // namespace pipewright

TORCH_LIBRARY_FRAGMENT(pipewright, m) {
  m.def(
      "grouped_mm_backward(Tensor grad_output, Tensor input, Tensor weight, Tensor offs, "
      "bool[2] output_mask) -> (Tensor, Tensor)",
      torch::dispatch(c10::DispatchKey::CompositeExplicitAutograd, pipewright::GroupedMmBackward));
}
