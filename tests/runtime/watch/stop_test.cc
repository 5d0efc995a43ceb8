// Tests how threads, and one rank alone, agree on the last step; and the pause between polls.
#include "runtime/watch/stop.h"

#include <gtest/gtest.h>

#include <atomic>
#include <thread>
#include <vector>

#include "runtime/transport/spin_wait.h"
#include "runtime/transport/thread_transport.h"
#include "runtime/watch/watch.h"

namespace pipewright {
namespace {

// All ranks do the same number of steps: rank 0 announces the request after the step in which it
// learned of it, and the step after that is the last. The request is noticed on rank 0 only.
TEST(StopAgreement, EndsAllRanksAfterTheSameStep) {
  for (int ranks : {1, 2, 5})
    for (int asked : {0, 1, 4}) {
      std::vector<int> steps(static_cast<size_t>(ranks), 0);
      StatusFile status("", 0);
      RunThreads(ranks, [&](Transport& t) {
        if (t.rank() == 0) t.SetStatus(status);
        StopAgreement stop(t);
        for (int step = 0; step < 10; ++step) {
          if (step == asked && t.rank() == 0) status.RequestStop();
          ++steps[static_cast<size_t>(t.rank())];
          if (stop.AfterStep()) break;
        }
        stop.Finish();
        t.AllGather("");
        EXPECT_EQ(t.Pending(), 0u);
      });
      EXPECT_EQ(steps, std::vector<int>(static_cast<size_t>(ranks), asked + (ranks == 1 ? 1 : 2)))
          << ranks << " ranks, asked in step " << asked;
    }
}

TEST(StopAgreement, GoesOnUntilTheLastStepIfNobodyAsks) {
  RunThreads(3, [](Transport& t) {
    StopAgreement stop(t);
    for (int step = 0; step < 5; ++step) EXPECT_FALSE(stop.AfterStep());
    stop.Finish();
    t.AllGather("");
    EXPECT_EQ(t.Pending(), 0u);
  });
}

TEST(StopsFirst, NeedsAStepAndIsTrueOnce) {
  RankStatus rank;
  EXPECT_FALSE(StopsFirst(rank)) << "no step has begun";
  rank.action = "0F0", rank.entry = 0, rank.stage = 0;
  EXPECT_TRUE(StopsFirst(rank));
  rank.stop = true;
  EXPECT_FALSE(StopsFirst(rank)) << "the second request ends it at once";
}

// Another thread gets its turn however long the wait, on a machine with few cores and with many.
TEST(SpinWait, LetsAnotherThreadGoOn) {
  for (bool crowded : {false, true}) {
    std::atomic<int> turn{0};
    auto play = [&](int me) {
      SpinWait::Clock::time_point disturbed{};
      for (int i = 0; i < 20; ++i) {
        SpinWait wait(crowded, disturbed);
        while (turn.load() % 2 != me) wait.Pause();
        turn.fetch_add(1);
      }
    };
    std::thread other(play, 1);
    play(0);
    other.join();
    EXPECT_EQ(turn.load(), 40);
  }
}

}  // namespace
}  // namespace pipewright
