#include "plan/placement/tree/export_tree.h"

#include <gtest/gtest.h>

#include "base/error.h"
#include "base/files/mapped_file.h"

namespace pipewright {
namespace {

// Linear(2, 2) a and b, BatchNorm1d(2) bn.
TEST(ExportTree, ModulesClassesAndSizes) {
  const std::string path = TEST_DIR "/data/import/export.pt2";
  const MappedFile file(path);
  ASSERT_TRUE(IsExport(file.bytes()));
  const ModuleTree tree = TreeOfExport(file.bytes(), path);
  std::vector<std::string> modules, classes;
  for (const TreeModule& module : tree.modules) {
    modules.push_back(module.name);
    classes.push_back(module.class_name);
  }
  EXPECT_EQ(modules, (std::vector<std::string>{"", "a", "b", "bn"}));
  EXPECT_EQ(classes, (std::vector<std::string>{"A", "Linear", "Linear", "BatchNorm1d"}));
  const auto sizes = Sizes(tree);
  const std::map<std::string, int64_t> bytes(sizes.begin(), sizes.end());
  EXPECT_EQ(bytes.at(""), 24 + 24 + 40);
  EXPECT_EQ(bytes.at("a.weight"), 16);
  EXPECT_EQ(bytes.at("bn"), 40);
  EXPECT_EQ(tree.modules[3].buffers.size(), 3u);
  EXPECT_FALSE(IsExport("PK"));
  EXPECT_THROW(TreeOfExport(file.bytes().substr(0, 500), path), Error);
}

}  // namespace
}  // namespace pipewright
