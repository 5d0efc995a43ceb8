// Plays two hosts in one process, which exchange the status of their ranks over the loopback.
#include "runtime/watch/remote_hosts.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>

#include "tests/temp_folder.h"

namespace pipewright {
namespace {

std::string Folder(const std::string& name) {
  std::filesystem::create_directories(TempPath(name));
  return TempPath(name);
}

std::string Loopback(const RemoteHosts& host) {
  const std::string address = host.address();
  return address.substr(0, address.find(' ')) + " 127.0.0.1";
}

TEST(RemoteHosts, LearnsTheStatusOfEachRank) {
  const std::string here = Folder("here"), there = Folder("there"), none = Folder("none");
  StatusFile first(StatusPath(there, 2), 2), second(StatusPath(there, 3), 3);
  first.Begin(4, 7, 1, 9, "1F9", 0);
  RemoteHosts a, b, stranger;
  a.Join(77, {{"host-b", Loopback(b), {2, 3}}});
  b.Join(77, {{"host-a", Loopback(a), {0}}});
  stranger.Join(78, {{"host-a", Loopback(a), {0}}});  // of another run

  stranger.Exchange(there, 0);
  EXPECT_FALSE(a.Exchange(here, 1));
  EXPECT_TRUE(a.statuses().empty());
  EXPECT_EQ(a.Silent(1000, 1), "") << "it was never heard of";

  bool complete = false;
  for (int i = 0; i < 1000 && !complete; ++i) {
    b.Exchange(there, 2);
    usleep(1000);
    complete = a.Exchange(here, 10);
  }
  ASSERT_TRUE(complete);
  ASSERT_EQ(a.statuses().size(), 2u);
  for (const RankStatus& status : a.statuses())
    EXPECT_EQ(status.action, status.rank == 2 ? "1F9" : "");
  EXPECT_EQ(a.Silent(14.5, 5), "");
  EXPECT_EQ(a.Silent(15, 5), "host-b");

  // Once all of its ranks have ended, a host may be silent.
  first.SetState(RankState::kFinished), second.SetState(RankState::kFailed);
  auto running = [&] {
    for (const RankStatus& status : a.statuses())
      if (status.state == RankState::kRunning) return true;
    return false;
  };
  for (int i = 0; i < 1000 && running(); ++i) {
    b.Exchange(there, 2);
    usleep(1000);
    a.Exchange(none, 10);
  }
  EXPECT_EQ(a.Silent(1000, 5), "");
  EXPECT_EQ(a.statuses().size(), 2u) << "later packets replace earlier ones";
}

}  // namespace
}  // namespace pipewright
