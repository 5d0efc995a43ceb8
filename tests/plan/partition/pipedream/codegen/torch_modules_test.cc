#include "plan/partition/pipedream/codegen/torch_modules.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <set>

#include "base/error.h"

namespace pipewright {
namespace {

// Returns the arguments, joined, or the message.
std::string Constructor(const std::string& text) {
  Description description{text, "g.txt", "node4", 3, 10};
  try {
    std::string joined;
    for (const auto& argument : ConstructorArguments(ReadModuleRepr(description), description))
      joined += (joined.empty() ? "" : " ") + argument.name + "=" + argument.value;
    return joined;
  } catch (const Error& error) {
    return error.what();
  }
}

TEST(TorchModules, AreFoundByAnyOfTheirNames) {
  EXPECT_EQ(TorchName("Linear"), "Linear");
  EXPECT_EQ(TorchName("torch.nn.Linear"), "Linear");
  EXPECT_EQ(TorchName("torch.nn.modules.linear.Linear"), "Linear");
  for (const char* other : {"", "linear", "Linea", "LinearX", "Mul", "my.Linear", "torch.nn."})
    EXPECT_EQ(TorchName(other), "") << other;
}

TEST(TorchModules, ListEachNameOnce) {
  std::vector<std::string> names = TorchModules();
  EXPECT_EQ(std::set<std::string>(names.begin(), names.end()).size(), names.size());
  for (const char* name : {"Conv2d", "LSTM", "Sequential", "ReLU", "Transformer"})
    EXPECT_EQ(std::count(names.begin(), names.end(), name), 1) << name;
  for (const std::string& name : names) {
    EXPECT_EQ(name.find_first_of(" =*.\n"), std::string::npos) << name;
    EXPECT_EQ(TorchName(name), name);
  }
}

TEST(TorchModules, TakeTheArgumentsOfTheirConstructors) {
  EXPECT_EQ(Constructor("Linear(2, 3, bias=False)"), "=2 =3 bias=False");
  EXPECT_EQ(Constructor("Linear(in_features=2, out_features=3)"), "in_features=2 out_features=3");
  EXPECT_EQ(Constructor("ReLU()"), "");
}

TEST(TorchModules, RefuseWhatTheConstructorDoesNotTake) {
  const std::string at = "g.txt:3:";
  for (const char* text : {"Linear(2, 3, depth=4)", "Linear(2, 3, True, 5)", "Linear(2)",
                           "Linear(2, 3, in_features=2)"}) {
    EXPECT_EQ(Constructor(text).substr(0, at.size()), at) << text;
  }
  EXPECT_EQ(Constructor("Linear(2, 3, depth=4)").substr(0, 11), "g.txt:3:23:");
}

}  // namespace
}  // namespace pipewright
