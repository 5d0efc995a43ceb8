#include "plan/placement/tree/script_tree.h"

#include <gtest/gtest.h>

#include <map>

#include "base/error.h"
#include "base/files/mapped_file.h"
#include "plan/placement/tree/export_tree.h"

namespace pipewright {
namespace {

using Names = std::vector<std::string>;

struct Read {
  Names modules, classes;
  std::map<std::string, int64_t> bytes;
  std::vector<Names> tied;
};

Read TreeOf(const std::string& name) {
  const std::string path = TEST_DIR "/data/" + name;
  const MappedFile file(path);
  EXPECT_TRUE(IsScript(file.bytes()) && !IsExport(file.bytes()));
  EXPECT_THROW(TreeOfScript(file.bytes().substr(0, 500), path), Error);
  const ModuleTree tree = TreeOfScript(file.bytes(), path);
  Read read;
  for (const TreeModule& module : tree.modules) {
    read.modules.push_back(module.name);
    read.classes.push_back(module.class_name);
  }
  const auto sizes = Sizes(tree);
  read.bytes = {sizes.begin(), sizes.end()};
  read.tied = TiedGroups(tree);
  return read;
}

TEST(ScriptTree, ModulesClassesAndSizes) {
  const Read scripted = TreeOf("import/scripted.pt"), traced = TreeOf("import/traced.pt");
  EXPECT_EQ(scripted.modules, (Names{"", "l", "l.0", "l.1", "d"}));
  EXPECT_EQ(scripted.classes, (Names{"S", "ModuleList", "Linear", "Linear", "Dropout"}));
  EXPECT_EQ(scripted.bytes.at(""), 48);
  EXPECT_EQ(scripted.bytes.at("l.1.bias"), 8);
  EXPECT_EQ(traced.modules, (Names{"", "0", "1", "2"}));
  EXPECT_EQ(traced.classes, (Names{"Sequential", "Linear", "ReLU", "LayerNorm"}));
  EXPECT_EQ(traced.bytes.at(""), 40);
}

// Made on the meta device: b (two Linear in a list l, a mask of 4 bools, a non-persistent buffer
// np), bn (BatchNorm1d(4)), head (its weight is b.l.1's), and a tensor that is neither parameter
// nor buffer.
TEST(ScriptTree, ModelsWithoutValues) {
  const Read read = TreeOf("placement/meta.pt");
  EXPECT_EQ(read.modules, (Names{"", "b", "b.l", "b.l.0", "b.l.1", "bn", "head", "drop"}));
  EXPECT_EQ(read.tied, (std::vector<Names>{{"b.l.1.weight", "head.weight"}}));
  EXPECT_EQ(read.bytes.at("b"), 64 + 80 + 4 + 12);
  EXPECT_EQ(read.bytes.at("bn"), 4 * 16 + 8);
  EXPECT_EQ(read.bytes.at("head"), 16);
  EXPECT_EQ(read.bytes.at(""), 160 + 72 + 16);
}

}  // namespace
}  // namespace pipewright
