#include "passes/dead_code.h"

#include <gtest/gtest.h>
#include <torch/csrc/jit/passes/dead_code_elimination.h>

#include "tests/passes/model_text.h"

namespace pipewright {
namespace {

std::shared_ptr<torch::jit::Graph> Parse(const std::string& body) {
  return ParseModel("graph(%w : Tensor, %x : Tensor, %n : int, %c : bool):\n"
                    "  %zero : int = prim::Constant[value=0]()\n"
                    "  %one : int = prim::Constant[value=1]()\n"
                    "  %two : int = prim::Constant[value=2]()\n"
                    "  %on : bool = prim::Constant[value=1]()\n"
                    "  %a : Tensor = aten::relu(%x)\n" +
                    body)
      .graph;
}

// If schemas declare everything, RemoveDeadCode removes what LibTorch's own pass removes.
TEST(DeadCode, IsThatOfLibTorchWhereSchemasTellAll) {
  const char* const bodies[] = {
      // an unused write, one read through a view, one before and one after the last read
      "  %b : Tensor = aten::neg(%a)\n  %d : Tensor = aten::relu_(%b)\n  return (%a)\n",
      "  %v : Tensor = aten::select(%a, %zero, %zero)\n  %d : Tensor = aten::relu_(%v)\n"
      "  return (%a)\n",
      "  %b : Tensor = aten::neg_(%a)\n  %s : Tensor = aten::mul(%a, %two)\n"
      "  %d : Tensor = aten::relu_(%a)\n  return (%s)\n",
      // writes to inputs stay
      "  %d : Tensor = aten::relu_(%w)\n  return (%a)\n",
      "  %v : Tensor = aten::t(%w)\n  %d : Tensor = aten::relu_(%v)\n  return (%a)\n",
      // dead results of branches and loops, and what they carry
      "  %p : Tensor, %q : Tensor = prim::If(%c)\n    block0():\n"
      "      %e : Tensor = aten::neg(%a)\n      %f : Tensor = aten::exp(%a)\n"
      "      -> (%e, %f)\n    block1():\n      %g : Tensor = aten::abs(%a)\n"
      "      -> (%g, %a)\n  return (%p)\n",
      "  %p : Tensor, %q : Tensor = prim::Loop(%n, %on, %a, %x)\n"
      "    block0(%i : int, %y : Tensor, %z : Tensor):\n"
      "      %e : Tensor = aten::add(%y, %z, %one)\n"
      "      %f : Tensor = aten::exp(%z)\n      -> (%on, %e, %f)\n  return (%p)\n",
      // side effects inside, and writes that the next iteration reads
      "  prim::If(%c)\n    block0():\n      %e : Tensor = aten::relu_(%a)\n      -> ()\n"
      "    block1():\n      %f : Tensor = aten::neg(%a)\n      -> ()\n  return (%a)\n",
      "  %b : Tensor = aten::neg(%a)\n  %p : Tensor = prim::Loop(%n, %on, %a)\n"
      "    block0(%i : int, %y : Tensor):\n      %e : Tensor = aten::add(%y, %b, %one)\n"
      "      %f : Tensor = aten::relu_(%b)\n      -> (%on, %e)\n  return (%p)\n",
      // lists
      "  %l : Tensor[] = prim::ListConstruct(%a)\n  %m : Tensor[] = aten::append(%l, %x)\n"
      "  return (%l)\n",
      "  %l : Tensor[] = prim::ListConstruct(%a)\n  %m : Tensor[] = aten::append(%l, %x)\n"
      "  return (%a)\n",
      "  %l : Tensor[] = aten::chunk(%a, %two, %zero)\n"
      "  %e : Tensor, %f : Tensor = prim::ListUnpack(%l)\n  %d : Tensor = aten::relu_(%e)\n"
      "  return (%a)\n"};
  for (const char* body : bodies) {
    auto expected = Parse(body), graph = Parse(body);
    torch::jit::EliminateDeadCode(expected);
    RemoveDeadCode(*graph);
    graph->lint();
    EXPECT_EQ(graph->toString(), expected->toString()) << body;
  }
}

TEST(DeadCode, WhatALoopCarriesForNothingGoes) {
  auto graph = Parse(
      "  %p : Tensor, %q : Tensor = prim::Loop(%n, %on, %a, %x)\n"
      "    block0(%i : int, %y : Tensor, %z : Tensor):\n      %e : Tensor = aten::neg(%y)\n"
      "      %f : Tensor = aten::exp(%z)\n      -> (%on, %e, %f)\n  return (%p)\n");
  RemoveDeadCode(*graph);
  graph->lint();
  Expect()
      .check("%p : Tensor = prim::Loop(%n, %on, %a)")
      ->check_next("block0(%i : int, %y : Tensor)")
      ->check_next("aten::neg")
      ->check_next("-> (%on, %e)")
      ->run(*graph);
}

TEST(DeadCode, AWriteThroughAViewThatNoSchemaDeclaresStays) {
  const char* const bodies[] = {
      "  %v : Tensor = aten::atleast_3d(%a)\n  %d : Tensor = aten::relu_(%v)\n  return (%a)\n",
      "  %l : Tensor[] = aten::unsafe_chunk(%a, %two, %zero)\n"
      "  %e : Tensor, %f : Tensor = prim::ListUnpack(%l)\n  %d : Tensor = aten::relu_(%f)\n"
      "  return (%a)\n",
      "  %l : Tensor[] = prim::ListConstruct(%a)\n  %m : Tensor[] = aten::meshgrid(%l)\n"
      "  %e : Tensor = aten::__getitem__(%m, %zero)\n  %d : Tensor = aten::relu_(%e)\n"
      "  return (%a)\n",
      "  %v : Tensor = aten::type_as(%w, %a)\n  %d : Tensor = aten::relu_(%v)\n  return (%a)\n"};
  for (const char* body : bodies) {
    auto graph = Parse(body);
    const std::string before = graph->toString();
    RemoveDeadCode(*graph);
    EXPECT_NE(graph->toString().find("relu_"), std::string::npos) << before;
  }
}

TEST(DeadCode, AWriteThatABackwardReadsStays) {
  const std::string start = "  %b : Tensor = aten::tanh(%a)\n  %c : Tensor = aten::exp(%b)\n";
  const std::string end =
      "  %e : Tensor, %f : Tensor = prim::ListUnpack(%l)\n  %d : Tensor = aten::relu_(%f)\n"
      "  return (%c)\n";
  for (const std::string view : {"unsafe_chunk", "chunk"}) {
    auto graph = Parse(start + "  %l : Tensor[] = aten::" + view + "(%b, %two, %zero)\n" + end);
    RemoveDeadCode(*graph);
    // After a write through chunk, autograd refuses the backward.
    EXPECT_EQ(graph->toString().find("relu_") != std::string::npos, view == "unsafe_chunk");
  }
}

}  // namespace
}  // namespace pipewright
