// Below autograd, every operator call of the thread passes through the fallback of a dispatch key
// that has no other use on tensors with memory. Calls within an operation are not recorded.
#include "runtime/recorded/recording.h"

#include <ATen/ATen.h>
#include <ATen/core/List.h>
#include <c10/core/impl/LocalDispatchKeySet.h>
#include <torch/library.h>

#include <algorithm>
#include <stdexcept>

#include "ops/generators.h"
#include "ops/transformers_ops.h"
#include "runtime/trial/traced_sizes.h"

namespace pipewright {

namespace {

constexpr c10::DispatchKey kKey = c10::DispatchKey::Fake;
constexpr c10::DispatchKeySet kBelow(c10::DispatchKeySet::FULL_AFTER, kKey);

thread_local Recording* current = nullptr;

}  // namespace

static void Traced(const c10::OperatorHandle& op, c10::DispatchKeySet keys,
                   torch::jit::Stack* stack) {
  c10::impl::ExcludeDispatchKeyGuard off(kKey);
  if (current)
    current->Call(op, keys & kBelow, stack);
  else
    op.redispatchBoxed(keys & kBelow, stack);
}

TORCH_LIBRARY_IMPL(_, Fake, m) { m.fallback(torch::CppFunction::makeFromBoxedFunction<&Traced>()); }

void Recording::Begin() {
  outer_ = current;
  current = this;
  NoteGenerators(&generators_);
  c10::impl::tls_set_dispatch_key_included(kKey, true);
}

void Recording::End() {
  c10::impl::tls_set_dispatch_key_included(kKey, outer_ != nullptr);
  current = outer_;
  NoteGenerators(nullptr);
}

Recording::Key Recording::KeyOf(const at::Tensor& tensor) {
  return {tensor.storage().unsafeGetStorageImpl(),
          tensor.storage_offset(),
          tensor.scalar_type(),
          tensor.sizes().vec(),
          tensor.strides().vec(),
          tensor.unsafeGetTensorImpl()->is_wrapped_number()};
}

bool Recording::IsPlainTensor(const at::Tensor& tensor) {
  if (tensor.device().is_cpu() && tensor.layout() == at::kStrided && !tensor.is_conj() &&
      !tensor.is_neg() && !tensor._is_zerotensor() && !tensor.is_quantized() && !tensor.is_nested())
    return true;
  Refuse("a tensor that is not a plain one in memory");
  return false;
}

void Recording::Add(const at::Tensor& tensor, bool given, Operand operand) {
  known_.insert_or_assign(KeyOf(tensor), std::move(operand));
  storages_.emplace(tensor.storage().unsafeGetStorageImpl(),
                    TracedStorage{c10::weak_intrusive_ptr<c10::StorageImpl>(
                                      c10::intrusive_ptr<c10::StorageImpl>::reclaim_copy(
                                          tensor.storage().unsafeGetStorageImpl())),
                                  given, false});
}

Operand Recording::NewSlot() {
  Operand operand;
  operand.kind = Operand::Kind::kSlot;
  operand.index = slots_++;
  return operand;
}

Operand Recording::Input(const at::Tensor& tensor) {
  Operand operand = NewSlot();
  if (!tensor.defined() || !IsPlainTensor(tensor)) return operand;
  if (storages_.count(tensor.storage().unsafeGetStorageImpl())) Refuse("inputs that share memory");
  Add(tensor, true, operand);
  return operand;
}

void Recording::Weight(int index, const at::Tensor& tensor) {
  if (!IsPlainTensor(tensor)) return;
  if (storages_.count(tensor.storage().unsafeGetStorageImpl())) Refuse("weights that share memory");
  Operand operand;
  operand.kind = Operand::Kind::kWeight;
  operand.index = index;
  Add(tensor, tensor.requires_grad(), operand);
  storages_.at(tensor.storage().unsafeGetStorageImpl()).weight = index;
}

void Recording::Constant(const at::Tensor& tensor) {
  if (!IsPlainTensor(tensor)) return;
  if (storages_.count(tensor.storage().unsafeGetStorageImpl())) return;
  Operand operand;
  operand.constant = tensor;
  Add(tensor, true, operand);
}

Operand Recording::Find(const at::Tensor& tensor) {
  if (!tensor.defined()) {
    Operand operand;
    operand.constant = tensor;
    return operand;
  }
  if (!IsPlainTensor(tensor)) return {};
  auto found = known_.find(KeyOf(tensor));
  if (found != known_.end()) return found->second;
  // A number in the code: computed numbers are refused where they are computed.
  if (tensor.dim() == 0 && tensor.unsafeGetTensorImpl()->is_wrapped_number() &&
      !storages_.count(tensor.storage().unsafeGetStorageImpl())) {
    Operand operand;
    operand.constant = tensor;
    return operand;
  }
  Refuse("a tensor that no recorded operation made");
  return {};
}

Operand Recording::FindResult(const at::Tensor& tensor) {
  if (tensor.defined() && tensor.numel() > 0 && IsPlainTensor(tensor))
    if (auto storage = storages_.find(tensor.storage().unsafeGetStorageImpl());
        storage != storages_.end() && storage->second.blank)
      Refuse("memory that something else has written to");
  return Find(tensor);
}

template <typename Visit>
static void EachTensor(const c10::IValue& value, Visit visit) {
  if (value.isTensor()) visit(value.toTensor());
  if (value.isList())
    for (const c10::IValue& item : value.toListRef()) EachTensor(item, visit);
}

bool HoldsNoTensor(const c10::IValue& value) {
  if (value.isList())
    return std::all_of(value.toListRef().begin(), value.toListRef().end(), HoldsNoTensor);
  return value.isNone() || value.isInt() || value.isDouble() || value.isBool() ||
         value.isComplexDouble() || value.isString() || value.isDevice();
}

Operand Recording::OperandOf(const c10::IValue& value) {
  if (value.isTensor()) return Find(value.toTensor());
  Operand operand;
  if (value.isList()) {
    // An empty list of the same element type, because the interpreter's lists of optional tensors
    // have another type than those of kernels. Never the list itself, which its owner may change.
    operand.constant = c10::impl::GenericList(value.toList().elementType());
    const bool plain = HoldsNoTensor(value);
    if (!plain) operand.kind = Operand::Kind::kList;
    for (const c10::IValue& item : value.toListRef())
      if (plain)
        operand.constant.toList().push_back(item);
      else
        operand.items.push_back(OperandOf(item));
  } else if (value.isGenerator()) {
    auto id = generators_.find(value.toGenerator().current_seed());
    if (id == generators_.end()) Refuse("random numbers of unknown origin");
    operand.kind = Operand::Kind::kGenerator;
    operand.index = id == generators_.end() ? -1 : static_cast<int>(id->second);
  } else if (HoldsNoTensor(value)) {
    operand.constant = value;
  } else {
    Refuse("an argument that is neither a tensor nor a number, " + value.tagKind());
  }
  return operand;
}

// Returns true if the sizes of the results depend on the data: a recording would not hold for views
// of them, nor for values computed from their sizes. Two operations lack the tag that says so.
static bool HasSizesOfData(const c10::OperatorHandle& op, const torch::jit::Stack& stack,
                           size_t first) {
  const std::string& name = op.schema().name();
  if (name == "aten::_ctc_loss" || name == "aten::_pack_padded_sequence") return true;
  if (!op.hasTag(at::Tag::dynamic_output_shape)) return false;
  if (name != "aten::index") return true;
  for (const c10::IValue& index : stack[first + 1].toListRef())
    if (index.isTensor() && (index.toTensor().scalar_type() == at::kBool ||
                             index.toTensor().scalar_type() == at::kByte))
      return true;
  return false;
}

static Recording::CallResult ResultOf(const torch::jit::Stack& stack, size_t returns,
                                      const std::vector<at::Tensor>& changed) {
  Recording::CallResult result;
  auto add = [&](const at::Tensor& tensor) {
    result.tensors.push_back(tensor.defined() ? tensor.clone() : tensor);
  };
  for (size_t i = stack.size() - returns; i < stack.size(); ++i)
    add(stack[i].isTensor() ? stack[i].toTensor() : at::Tensor());
  for (const at::Tensor& tensor : changed) add(tensor);
  result.place = LineOfCode();
  return result;
}

void Recording::Call(const c10::OperatorHandle& op, c10::DispatchKeySet keys,
                     torch::jit::Stack* stack) {
  const c10::FunctionSchema& schema = op.schema();
  const size_t arguments = schema.arguments().size(), first = stack->size() - arguments;
  Instruction call{Instruction::Kind::kCall, op, keys, {}, {}, {}, {}, 0};
  const std::string& name = schema.name();
  bool writes = false, keyed = false;
  std::vector<at::Tensor> changed;
  if (!name.starts_with("aten::") && !name.starts_with("pipewright::") &&
      !name.starts_with("pippy::") && !IsOwnTransformersOperator(name))
    Refuse("a custom operator, " + name);
  if (schema.returns().empty() && !name.ends_with("pipe_split")) Refuse("a check, " + name);
  for (size_t i = 0; i < arguments && refusal_.empty(); ++i) {
    const c10::IValue& value = (*stack)[first + i];
    call.operands.push_back(OperandOf(value));
    const auto* alias = schema.arguments()[i].alias_info();
    const bool written = alias && alias->isWrite();
    const std::string& argument = schema.arguments()[i].name();
    keyed = keyed || value.isGenerator() ||
            (argument == "dropout_p" && value.isDouble() && value.toDouble() == 0);
    writes = writes || written;
    auto look = [&](const at::Tensor& tensor) {
      if (!tensor.defined()) return;
      if (written && keeps_results) changed.push_back(tensor);
      auto storage = storages_.find(tensor.storage().unsafeGetStorageImpl());
      if (storage == storages_.end()) {
        if (written) Refuse("forward that writes to a number of the code");
        return;
      }
      const int weight = storage->second.weight;
      if (backward_ && weight >= 0 && written_.count(weight))
        Refuse("backward that reads a buffer which forward writes");
      if (!written) {
        if (storage->second.blank && name != "aten::empty_like")
          Refuse("memory that something else has written to");
        return;
      }
      storage->second.blank = false;
      if (weight >= 0) written_.insert(weight);
      if (backward_) Refuse("backward that writes in place, " + name);
      if (storage->second.given) Refuse("forward that writes to what it is given");
    };
    EachTensor(value, look);
  }
  if (op.hasTag(at::Tag::nondeterministic_seeded) && !keyed) Refuse("random numbers, " + name);
  if (HasSizesOfData(op, *stack, first)) Refuse("sizes that depend on the data, " + name);
  c10::IValue source;  // for views
  for (size_t i = 0; i < arguments && source.isNone(); ++i)
    if ((*stack)[first + i].isTensor() && (*stack)[first + i].toTensor().defined())
      source = (*stack)[first + i];
  // Throws before the operation runs, so that it draws no random number. Other refused code runs to
  // its end, so that it leaves the regions that it has entered.
  if (!refusal_.empty() && op.hasTag(at::Tag::nondeterministic_seeded))
    throw std::runtime_error(refusal_);
  op.redispatchBoxed(keys, stack);

  InstructionList views;
  bool computes = writes;
  auto result = [&](const at::Tensor& tensor) {
    if (!tensor.defined()) return -1;
    if (!IsPlainTensor(tensor)) return -1;
    if (known_.count(KeyOf(tensor))) {
      const Operand& known = known_.at(KeyOf(tensor));
      if (known.kind != Operand::Kind::kConstant) return -1;
    }
    const c10::StorageImpl* memory = tensor.storage().unsafeGetStorageImpl();
    Operand slot = NewSlot();
    auto storage = storages_.find(memory);
    if (storage == storages_.end()) {
      computes = true;
      Add(tensor, false, slot);
      storages_.at(memory).blank = name.starts_with("aten::empty") || name == "aten::new_empty" ||
                                   name == "aten::new_empty_strided";
      if (backward_) held_.push_back(tensor.storage());
      return slot.index;
    }
    if (source.isNone() || source.toTensor().storage().unsafeGetStorageImpl() != memory ||
        source.toTensor().scalar_type() != tensor.scalar_type()) {
      Refuse("a view of something else, " + name);
      return -1;
    }
    Instruction view{Instruction::Kind::kView,
                     op,
                     keys,
                     {Find(source.toTensor())},
                     {slot.index},
                     {},
                     Geometry::Of(tensor),
                     tensor.storage_offset() - source.toTensor().storage_offset()};
    views.push_back(std::move(view));
    known_.insert_or_assign(KeyOf(tensor), slot);
    return -1;
  };
  const size_t returns = schema.returns().size();
  for (size_t i = stack->size() - returns; i < stack->size(); ++i) {
    const c10::IValue& value = (*stack)[i];
    if (value.isTensor()) {
      call.results.push_back(result(value.toTensor()));
    } else if (value.isTensorList()) {
      call.results.push_back(-1);
      for (const at::Tensor& item : value.toTensorVector())
        if (result(item) >= 0) Refuse("an operation that makes a list, " + name);
    } else {
      call.results.push_back(-1);
      if (name != "aten::_fused_sdp_choice" && !value.isNone())
        Refuse("a number that is computed, " + name);
    }
  }
  InstructionList& list = backward_ ? backward : forward;
  if (computes) {
    call.number = calls_++;
    if (keeps_results) results.push_back(ResultOf(*stack, returns, changed));
    list.push_back(std::move(call));
  }
  for (Instruction& view : views) list.push_back(std::move(view));
}

}  // namespace pipewright
