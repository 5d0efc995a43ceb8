#include "formats/package/package_confs.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>

#include "base/files/read_file.h"
#include "formats/conf.h"

namespace pipewright {

TEST(PackageConfs, ModulesInOrderAndAllReplicas) {
  const auto files = PackageConfs(5, 2);
  ASSERT_EQ(files.size(), 3u);
  const Conf mp = ParseConf(files.at("mp_conf.json"), "mp");
  EXPECT_EQ(mp.module_to_stage, (std::vector<int>{0, 0, 0, 1, 1}));
  EXPECT_EQ(mp.stage_to_ranks, (std::vector<std::vector<int>>{{0}, {1}}));
  EXPECT_EQ(files.at("hybrid_conf.json"), files.at("mp_conf.json"));
  const Conf dp = ParseConf(files.at("dp_conf.json"), "dp");
  EXPECT_EQ(dp.module_to_stage, (std::vector<int>(5, 0)));
  EXPECT_EQ(dp.stage_to_ranks, (std::vector<std::vector<int>>{{0, 1}}));
}

TEST(PackageConfs, OfAPackageAreThoseItWasCompiledFor) {
  const std::string folder = testing::TempDir() + "package_confs_" + std::to_string(::getpid());
  std::filesystem::create_directories(folder + "/conf");
  EXPECT_TRUE(PackageConfs(folder, 4).empty());
  WriteFile(folder + "/conf/dp_conf.json", PackageConfs(4, 3).at("dp_conf.json"));
  EXPECT_EQ(PackageConfs(folder, 4), PackageConfs(4, 3));
  WriteFile(folder + "/conf/dp_conf.json", "{");
  EXPECT_TRUE(PackageConfs(folder, 4).empty());
  std::filesystem::remove_all(folder);
}

}  // namespace pipewright
