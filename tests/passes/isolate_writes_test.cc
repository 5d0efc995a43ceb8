#include "passes/split/isolate_writes.h"

#include <gtest/gtest.h>

#include "passes/name_writes.h"
#include "passes/split/split.h"
#include "tests/error_text.h"
#include "tests/passes/model_text.h"

namespace pipewright {
namespace {

TEST(IsolateWrites, ReceivedValuesAreClonedBeforeTheyAreWritten) {
  Model model = ParseModel(R"IR(
graph(%training : bool, %device : Device, %x : Tensor):
  %a : Tensor = aten::relu(%x)
  pippy::_pipe_split()
  %b : Tensor = aten::relu_(%a)
  %c : Tensor = aten::relu_(%b)
  return (%c)
)IR");
  ModuleAssignment assignment = AssignModules(model, {});
  IsolateWrites(model, assignment);
  Expect()
      .check_count("aten::clone(%a, ", 1, true)
      ->check("aten::relu_(%a_own)")
      ->check("aten::relu_(%b)")
      ->run(*model.graph);
}

TEST(IsolateWrites, OwnValuesAreNotCloned) {
  Model model = ParseModel(R"IR(
graph(%training : bool, %device : Device, %x : Tensor):
  %a : Tensor = aten::relu(%x)
  %b : Tensor = aten::relu_(%a)
  pippy::_pipe_split()
  %c : Tensor = aten::relu(%a)
  return (%c)
)IR");
  ModuleAssignment assignment = AssignModules(model, {});
  IsolateWrites(model, assignment);
  Expect().check_not("aten::clone")->run(*model.graph);
}

TEST(IsolateWrites, AWriteThatAnotherModuleShouldSeeIsRefused) {
  Model model = ParseModel(R"IR(
graph(%training : bool, %device : Device, %x : Tensor):
  %zero : int = prim::Constant[value=0]()
  %a : Tensor = aten::relu(%x)
  %v : Tensor = aten::select(%a, %zero, %zero)
  pippy::_pipe_split()
  %b : Tensor = aten::relu_(%a)
  pippy::_pipe_split()
  %c : Tensor = aten::add(%b, %v, %zero)
  return (%c)
)IR");
  ModuleAssignment assignment = AssignModules(model, {});
  std::string message = ErrorOf([&] { IsolateWrites(model, assignment); });
  EXPECT_NE(message.find("relu_"), std::string::npos) << message;
  EXPECT_NE(message.find("add (the model itself) uses; a cut separates the two"), std::string::npos)
      << message;
}

TEST(NameWrites, WhatIsUsedAfterwardsIsTheResult) {
  Model model = ParseModel(R"IR(
graph(%seen : Tensor, %training : bool, %device : Device, %x : Tensor):
  %one : int = prim::Constant[value=1]()
  %zero : int = prim::Constant[value=0]()
  %a : Tensor = aten::relu(%x)
  pippy::_pipe_split()
  %early : Tensor = aten::neg(%a)
  %b : Tensor = aten::add_(%a, %one, %one)
  %v : Tensor = aten::select(%a, %zero, %zero)
  %w : Tensor = aten::relu_(%v)
  %counted : Tensor = aten::add_(%seen, %one, %one)
  pippy::_pipe_split()
  %c : Tensor = aten::add(%a, %early, %one)
  %d : Tensor = aten::add(%c, %seen, %one)
  return (%d, %x)
)IR",
                           {Buffer("seen")});
  NameWrites(model);
  Expect()
      .check("aten::neg(%a)")
      ->check("aten::add_(%a, ")
      ->check("aten::select(%b, ")
      ->check("aten::relu_(%v)")
      ->check("%c : Tensor = aten::add(%b, ")
      ->check("%d : Tensor = aten::add(%c, %seen")
      ->run(*model.graph);
}

TEST(NameWrites, CutsMayLieBetween) {
  Model model = ParseModel(R"IR(
graph(%training : bool, %device : Device, %x : Tensor):
  %one : int = prim::Constant[value=1]()
  %a : Tensor = aten::relu(%x)
  pippy::_pipe_split()
  %b : Tensor = aten::add_(%a, %one, %one)
  pippy::_pipe_split()
  %c : Tensor = aten::neg(%a)
  return (%c)
)IR");
  NameWrites(model);
  ModuleAssignment assignment = AssignModules(model, {});
  EXPECT_EQ(assignment.modules, 3);
  IsolateWrites(model, assignment);
  Expect().check("aten::add_(%a_own, ")->check("aten::neg(%b)")->run(*model.graph);
}

// A cut by cost avoids cuts that IsolateWrites would refuse.
TEST(AssignModules, EqualCutsLeaveWritesWithWhatTheyHide) {
  const char* const bodies[] = {
      // returned after the write, seen through a view, through the input, and through a buffer
      "  %c : Tensor = aten::relu_(%b)\n  return (%b)\n",
      "  %v : Tensor = aten::select(%b, %zero, %zero)\n  %p : Tensor = aten::relu(%b)\n"
      "  %q : Tensor = aten::relu(%p)\n  %w : Tensor = aten::relu_(%v)\n"
      "  %c : Tensor = aten::add(%b, %q, %one)\n  return (%c)\n",
      "  %w : Tensor = aten::relu_(%x)\n  %p : Tensor = aten::relu(%b)\n"
      "  %q : Tensor = aten::relu(%p)\n  %c : Tensor = aten::add(%q, %x, %one)\n  return (%c)\n",
      "  %v : Tensor = aten::select(%seen, %zero, %zero)\n  %w : Tensor = aten::add_(%v, %one, "
      "%one)\n"
      "  %p : Tensor = aten::relu(%b)\n  %u : Tensor = aten::select(%seen, %zero, %one)\n"
      "  %c : Tensor = aten::add(%p, %u, %one)\n  return (%c)\n"};
  for (const char* body : bodies)
    for (const char* split : {"equal:2", "equal:3"}) {
      Model model = ParseModel(
          std::string("graph(%seen : Tensor, %training : bool, %device : Device, %x : Tensor):\n"
                      "  %zero : int = prim::Constant[value=0]()\n"
                      "  %one : int = prim::Constant[value=1]()\n"
                      "  %e : Tensor = aten::relu(%x)\n  %f : Tensor = aten::relu(%e)\n"
                      "  %a : Tensor = aten::relu(%f)\n  %b : Tensor = aten::relu(%a)\n") +
              body,
          {Buffer("seen")});
      ModuleAssignment assignment = AssignModules(model, ParseSplit(split));
      EXPECT_EQ(assignment.modules, split[6] - '0') << body;
      EXPECT_EQ(ErrorOf([&] { IsolateWrites(model, assignment); }), "") << split << "\n" << body;
    }
}

TEST(IsolateWrites, AWrittenBufferBelongsToOneModule) {
  Model model = ParseModel(R"IR(
graph(%seen : Tensor, %training : bool, %device : Device, %x : Tensor):
  %one : int = prim::Constant[value=1]()
  %a : Tensor = aten::add(%x, %seen, %one)
  pippy::_pipe_split()
  %n : Tensor = aten::add_(%seen, %one, %one)
  %b : Tensor = aten::relu(%a)
  return (%b)
)IR",
                           {Buffer("seen")});
  ModuleAssignment assignment = AssignModules(model, {});
  EXPECT_NE(ErrorOf([&] {
              IsolateWrites(model, assignment);
            }).find("a buffer that is written belongs to one module"),
            std::string::npos);
}

}  // namespace
}  // namespace pipewright
