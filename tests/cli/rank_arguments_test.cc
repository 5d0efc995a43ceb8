// Tests which arguments of a command line go to the ranks that it starts.
#include "cli/rank_arguments.h"

#include <gtest/gtest.h>

#include <filesystem>

namespace pipewright {
namespace {

using Words = std::vector<std::string>;

TEST(RankArguments, LackTheOptionsOfTheStart) {
  const auto rest = [](const Words& words) {
    Words left = RankArguments(words, {{"-n", true}, {"--hosts", true}, {"--elastic", false}});
    EXPECT_EQ(left.at(0), std::filesystem::read_symlink("/proc/self/exe"));
    left.erase(left.begin());
    return left;
  };
  EXPECT_EQ(rest({"program", "profile", "P", "--conf", "c"}),
            Words({"profile", "P", "--conf", "c"}));
  EXPECT_EQ(rest({"program", "-n", "3", "profile", "--hosts", "a", "P"}), Words({"profile", "P"}));
  EXPECT_EQ(rest({"program", "-n3", "profile", "--hosts=a", "--elastic", "P", "-n=3"}),
            Words({"profile", "P"}));
  EXPECT_EQ(rest({"program", "-not", "--hostsfile", "h"}), Words({"-not", "--hostsfile", "h"}));
}

}  // namespace
}  // namespace pipewright
