#include "runtime/recorded/lists.h"

#include <ATen/core/function_schema.h>

#include <algorithm>
#include <set>

namespace pipewright {

namespace {

using Slots = std::vector<bool>;  // by slot

template <typename Visit>
void EachSlot(const Operand& operand, Visit visit) {
  if (operand.kind == Operand::Kind::kSlot) visit(operand.index);
  for (const Operand& item : operand.items) EachSlot(item, visit);
}

template <typename Visit>
void EachRead(const Instruction& instruction, Visit visit) {
  for (const Operand& operand : instruction.operands) EachSlot(operand, visit);
}

bool Writes(const Instruction& call) {
  if (call.kind != Instruction::Kind::kCall) return false;
  for (const c10::Argument& argument : call.op.schema().arguments())
    if (argument.alias_info() && argument.alias_info()->isWrite()) return true;
  return false;
}

// Returns the index of the operand that selects the results (the output mask); -1 if there is none.
int MaskOf(const Instruction& call) {
  if (call.kind != Instruction::Kind::kCall) return -1;
  const auto& arguments = call.op.schema().arguments();
  for (size_t i = 0; i < arguments.size(); ++i)
    if (arguments[i].name() == "output_mask" && call.operands[i].constant.isBoolList())
      return static_cast<int>(i);
  return -1;
}

// Returns the instruction with only those results requested that `wanted` selects.
Instruction Masked(const Instruction& whole, int mask, const Slots& wanted) {
  Instruction part = whole;
  c10::List<bool> asked = whole.operands[static_cast<size_t>(mask)].constant.toBoolList().copy();
  for (size_t k = 0; k < part.results.size(); ++k) {
    if (part.results[k] >= 0 && wanted[static_cast<size_t>(part.results[k])]) continue;
    part.results[k] = -1;
    if (k < asked.size()) asked.set(k, false);
  }
  part.operands[static_cast<size_t>(mask)].constant = asked;
  return part;
}

// Returns true for normalizations. They sum over all that they read for the gradient of their
// input, which almost gives those of weight and bias too; W would need a second pass over the data.
bool GivesBoth(const Instruction& call) {
  for (const char* name : {"aten::native_layer_norm_backward", "aten::native_batch_norm_backward",
                           "aten::native_group_norm_backward", "aten::_fused_rms_norm_backward"})
    if (call.op.schema().name() == name) return true;
  return false;
}

bool Gives(const Instruction& instruction, const Slots& wanted) {
  return std::any_of(instruction.results.begin(), instruction.results.end(),
                     [&](int slot) { return slot >= 0 && wanted[static_cast<size_t>(slot)]; });
}

// Returns the part of `list` that must run for the slots in `wanted`, and adds the slots that it
// reads. Kernels that compute both sides (GivesBoth) give the slots in `both` too.
InstructionList Needed(const InstructionList& list, Slots& wanted, const Slots* both = nullptr) {
  InstructionList needed;
  for (auto one = list.rbegin(); one != list.rend(); ++one) {
    if (!Writes(*one) && !Gives(*one, wanted)) continue;
    const int mask = MaskOf(*one);
    const Slots& asked = both && mask >= 0 && GivesBoth(*one) ? *both : wanted;
    needed.push_back(mask < 0 ? *one : Masked(*one, mask, asked));
    EachRead(*one, [&](int slot) { wanted[static_cast<size_t>(slot)] = true; });
  }
  std::reverse(needed.begin(), needed.end());
  return needed;
}

// Makes the last instruction that reads a slot release it, except for those in `kept`; drops
// results that nothing reads. `present`: slots that are filled before. Returns those that nothing
// reads.
std::vector<int> Release(InstructionList& list, const Slots& kept, const Slots& present) {
  Slots later = kept;
  for (auto one = list.rbegin(); one != list.rend(); ++one) {
    for (int& slot : one->results)
      if (slot >= 0 && !later[static_cast<size_t>(slot)]) slot = -1;
    EachRead(*one, [&](int slot) {
      if (later[static_cast<size_t>(slot)]) return;
      later[static_cast<size_t>(slot)] = true;
      one->release.push_back(slot);
    });
  }
  std::vector<int> unread;
  for (size_t slot = 0; slot < present.size(); ++slot)
    if (present[slot] && !later[slot]) unread.push_back(static_cast<int>(slot));
  return unread;
}

void AddSlots(const std::vector<Operand>& operands, Slots& slots) {
  for (const Operand& operand : operands)
    EachSlot(operand, [&](int slot) { slots[static_cast<size_t>(slot)] = true; });
}

Slots ReadBy(const InstructionList& list, size_t slots) {
  Slots read(slots);
  for (const Instruction& one : list)
    EachRead(one, [&](int slot) { read[static_cast<size_t>(slot)] = true; });
  return read;
}

}  // namespace

void MakeLists(const Recording& trace, RecordedGraph& graph) {
  graph.slots = trace.slots();
  const size_t slots = static_cast<size_t>(graph.slots);
  // Makes B, then I, then W from the rest of B.
  Slots for_inputs(slots), for_weights(slots);
  AddSlots(graph.input_gradient, for_inputs);
  Slots input_results = for_inputs;
  AddSlots(graph.weight_gradient, for_weights);
  Slots weight_results = for_weights;
  Slots all(slots);
  AddSlots(graph.input_gradient, all);
  AddSlots(graph.weight_gradient, all);
  const Slots results = all;
  graph.backward = Needed(trace.backward, all);
  graph.input_grad = Needed(trace.backward, for_inputs, &all);
  Slots computed(slots);  // by I
  for (const Instruction& one : graph.input_grad)
    if (one.kind != Instruction::Kind::kView)
      for (int slot : one.results)
        if (slot >= 0) computed[static_cast<size_t>(slot)] = true;
  // Kernels that cannot be asked for one side compute all in I.
  auto runs_in_input_grad = [&](const Instruction& one) {
    return one.kind != Instruction::Kind::kView && MaskOf(one) < 0 && Gives(one, for_inputs);
  };
  for (auto one = trace.backward.rbegin(); one != trace.backward.rend(); ++one) {
    if (!Gives(*one, for_weights) || runs_in_input_grad(*one)) continue;
    const int mask = MaskOf(*one);
    Instruction part = *one;
    if (mask >= 0) {
      Slots rest = for_weights;
      for (size_t slot = 0; slot < slots; ++slot)
        if (computed[slot]) rest[slot] = false;
      if (!Gives(*one, rest)) continue;
      part = Masked(*one, mask, rest);
    }
    graph.weight_grad.push_back(std::move(part));
    EachRead(*one, [&](int slot) { for_weights[static_cast<size_t>(slot)] = true; });
  }
  std::reverse(graph.weight_grad.begin(), graph.weight_grad.end());

  // F gives its outputs and what backward reads.
  Slots given(slots), forward_kept = ReadBy(graph.backward, slots);
  AddSlots(graph.output, given);
  AddSlots(graph.input_gradient, forward_kept);
  AddSlots(graph.weight_gradient, forward_kept);
  for (size_t slot = 0; slot < slots; ++slot) given[slot] = given[slot] || forward_kept[slot];
  Slots wanted = given;
  graph.forward = Needed(trace.forward, wanted);
  Slots present(slots);
  for (int i = 0; i < graph.inputs; ++i) present[static_cast<size_t>(i)] = true;
  graph.forward_release = Release(graph.forward, given, present);
  for (size_t slot = 0; slot < slots; ++slot)
    if (given[slot] && !forward_kept[slot]) graph.forward_done.push_back(static_cast<int>(slot));

  // From I to W stays what W reads.
  Slots kept = ReadBy(graph.weight_grad, slots);
  AddSlots(graph.weight_gradient, kept);
  for (size_t slot = 0; slot < slots; ++slot)
    input_results[slot] = input_results[slot] || kept[slot];
  // W makes these views itself, so I keeps only what they are made of.
  for (const Instruction& one : graph.weight_grad)
    if (one.kind == Instruction::Kind::kView)
      for (int slot : one.results)
        if (slot >= 0) input_results[static_cast<size_t>(slot)] = false;
  AddSlots(graph.input_gradient, input_results);
  for (size_t slot = 0; slot < slots; ++slot)
    if (input_results[slot] && !kept[slot]) graph.input_grad_done.push_back(static_cast<int>(slot));
  Release(graph.backward, results, {});
  Release(graph.input_grad, input_results, {});
  Release(graph.weight_grad, weight_results, {});
}

}  // namespace pipewright
