#include "runtime/recorded/replay.h"

#include <ATen/ATen.h>
#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/core/List.h>

#include "ops/generators.h"

namespace pipewright {

namespace {

using Unary = at::Tensor(const at::Tensor&);
using Binary = at::Tensor(const at::Tensor&, const at::Tensor&);
using ScaledSum = at::Tensor(const at::Tensor&, const at::Tensor&, const at::Scalar&);
using Addmm = at::Tensor(const at::Tensor&, const at::Tensor&, const at::Tensor&, const at::Scalar&,
                         const at::Scalar&);

const at::Tensor& Read(const Operand& operand, const std::vector<at::Tensor>& weights,
                       const Tensors& slots) {
  switch (operand.kind) {
    case Operand::Kind::kSlot:
      return slots[static_cast<size_t>(operand.index)];
    case Operand::Kind::kWeight:
      return weights[static_cast<size_t>(operand.index)];
    default:
      return operand.constant.toTensor();
  }
}

c10::IValue Boxed(const Operand& operand, const std::vector<at::Tensor>& weights,
                  const Tensors& slots) {
  switch (operand.kind) {
    case Operand::Kind::kSlot:
    case Operand::Kind::kWeight:
      return Read(operand, weights, slots);
    case Operand::Kind::kList: {
      c10::impl::GenericList list(operand.constant.toList().elementType());
      list.reserve(operand.items.size());
      for (const Operand& item : operand.items) list.push_back(Boxed(item, weights, slots));
      return list;
    }
    case Operand::Kind::kGenerator:
      return MakeGenerator(at::kCPU, operand.index);
    default:
      return operand.constant;
  }
}

at::Tensor View(const at::Tensor& base, const Geometry& geometry, int64_t offset) {
  at::Tensor view = at::detail::make_tensor<c10::TensorImpl>(
      c10::TensorImpl::VIEW, c10::Storage(base.storage()), base.key_set(), base.dtype());
  view.unsafeGetTensorImpl()->set_sizes_and_strides(geometry.sizes, geometry.strides,
                                                    base.storage_offset() + offset);
  if (geometry.number) view.unsafeGetTensorImpl()->set_wrapped_number(true);
  return view;
}

}  // namespace

at::Tensor ValueOf(const Operand& operand, const std::vector<at::Tensor>& weights,
                   const Tensors& slots) {
  if (operand.kind == Operand::Kind::kConstant && !operand.constant.isTensor()) return {};
  return Read(operand, weights, slots);
}

void Replay(const InstructionList& list, bool gradient, const std::vector<at::Tensor>& weights,
            Tensors& slots) {
  at::AutoDispatchBelowADInplaceOrView below;
  at::AutoGradMode mode(gradient);
  torch::jit::Stack stack;
  stack.reserve(16);
  auto keep = [&](const Instruction& one, at::Tensor value) {
    if (one.results[0] >= 0) slots[static_cast<size_t>(one.results[0])] = std::move(value);
  };
  for (const Instruction& one : list) {
    auto read = [&](size_t i) -> const at::Tensor& {
      return Read(one.operands[i], weights, slots);
    };
    switch (one.kind) {
      case Instruction::Kind::kView:
        keep(one, View(read(0), one.geometry, one.offset));
        break;
      case Instruction::Kind::kUnary:
        keep(one, one.op.typed<Unary>().redispatch(one.keys, read(0)));
        break;
      case Instruction::Kind::kBinary:
        keep(one, one.op.typed<Binary>().redispatch(one.keys, read(0), read(1)));
        break;
      case Instruction::Kind::kScaledSum:
        keep(one, one.op.typed<ScaledSum>().redispatch(one.keys, read(0), read(1),
                                                       one.operands[2].constant.toScalar()));
        break;
      case Instruction::Kind::kAddmm:
        keep(one, one.op.typed<Addmm>().redispatch(one.keys, read(0), read(1), read(2),
                                                   one.operands[3].constant.toScalar(),
                                                   one.operands[4].constant.toScalar()));
        break;
      case Instruction::Kind::kCall:
        stack.clear();
        for (const Operand& operand : one.operands) stack.push_back(Boxed(operand, weights, slots));
        one.op.redispatchBoxed(one.keys, &stack);
        for (size_t k = 0; k < one.results.size(); ++k)
          if (one.results[k] >= 0)
            slots[static_cast<size_t>(one.results[k])] = std::move(stack[k]).toTensor();
        stack.clear();
        break;
    }
    for (int slot : one.release) slots[static_cast<size_t>(slot)].reset();
  }
}

void Specialize(InstructionList& list) {
  for (Instruction& one : list) {
    if (one.kind != Instruction::Kind::kCall) continue;
    const std::string name =
        one.op.operator_name().name + "." + one.op.operator_name().overload_name;
    for (const char* unary : {"aten::relu.", "aten::tanh.", "aten::sigmoid.", "aten::silu.",
                              "aten::neg.", "aten::exp.", "aten::rsqrt."})
      if (name == unary) one.kind = Instruction::Kind::kUnary;
    for (const char* binary : {"aten::mm.", "aten::bmm.", "aten::mul.Tensor", "aten::div.Tensor",
                               "aten::tanh_backward.", "aten::sigmoid_backward."})
      if (name == binary) one.kind = Instruction::Kind::kBinary;
    for (const char* scaled : {"aten::add.Tensor", "aten::sub.Tensor", "aten::threshold_backward."})
      if (name == scaled) one.kind = Instruction::Kind::kScaledSum;
    if (name == "aten::addmm.") one.kind = Instruction::Kind::kAddmm;
  }
}

}  // namespace pipewright
