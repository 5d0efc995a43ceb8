#include "runtime/transport/hosts.h"

#include <gtest/gtest.h>

namespace pipewright {
namespace {

TEST(HostsUnderMpirun, AreListedWithTheirRanks) {
  EXPECT_EQ(HostList({"a"}), "");
  EXPECT_EQ(HostList({"a", "a", "a"}), "");
  EXPECT_EQ(HostList({"a", "a", "b"}), "a:2,b:1");
  EXPECT_EQ(HostList({"a", "b", "c"}), "a:1,b:1,c:1");
}

}  // namespace
}  // namespace pipewright
