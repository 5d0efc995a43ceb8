#include "runtime/exec/transport.h"

#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <memory>
#include <thread>

#include "runtime/exec/phase.h"
#include "runtime/transport/thread_transport.h"
#include "tests/error_text.h"

namespace pipewright {
namespace {

Bundle Numbers(std::vector<int> numbers) {
  auto memory = std::make_shared<std::vector<int>>(std::move(numbers));
  return {{{memory->data(), memory->size() * sizeof(int)}}, memory};
}
std::vector<int> Numbers(const Bundle& bundle) {
  auto* data = static_cast<int*>(bundle.regions[0].data);
  return {data, data + bundle.regions[0].bytes / sizeof(int)};
}

TEST(ThreadTransport, MatchesByTagAndThenInOrder) {
  RunThreads(2, [](Transport& t) {
    if (t.rank() == 0) {
      std::vector<Token> tokens;
      for (int i = 0; i < 4; ++i) tokens.push_back(t.Send(1, i % 2, Numbers({i})));
      for (const Token& token : tokens) t.WaitFor(token, {Awaited::kTensor});
    } else {
      std::vector<std::pair<Bundle, Token>> posted;
      for (int tag : {1, 0, 0, 1}) {
        Bundle into = Numbers({-1});
        posted.emplace_back(into, t.Recv(0, tag, into));
      }
      std::vector<int> got;
      for (auto& [into, token] : posted) {
        t.WaitFor(token, {Awaited::kTensor});
        got.push_back(Numbers(into)[0]);
      }
      EXPECT_EQ(got, (std::vector<int>{1, 0, 2, 3}));
    }
  });
}

TEST(ThreadTransport, ASendCompletesOnceItsReceiveIsPosted) {
  RunThreads(2, [&](Transport& t) {
    if (t.rank() == 0) {
      Bundle bundle = Numbers({1});
      std::weak_ptr<void> held = bundle.owner;
      Token token = t.Send(1, 0, std::move(bundle));
      EXPECT_FALSE(t.Test(token));
      EXPECT_FALSE(held.expired());
      t.AllGather("");
      t.WaitFor(token, {Awaited::kTensor});
      EXPECT_TRUE(t.Test(token));  // and stays so
      EXPECT_TRUE(held.expired());
    } else {
      t.AllGather("");
      Bundle into = Numbers({0});
      t.WaitFor(t.Recv(0, 0, into), {Awaited::kTensor});
      EXPECT_EQ(Numbers(into)[0], 1);
    }
  });
}

TEST(ThreadTransport, RefusesMemoryOfADevice) {
  RunThreads(1, [&](Transport& t) {
    Bundle bundle = Numbers({1});
    bundle.regions[0].on_device = true;
    EXPECT_FALSE(t.TakesDevices(0));
    EXPECT_THROW(t.Send(0, 0, bundle), Error);
    EXPECT_THROW(t.Recv(0, 0, bundle), Error);
    EXPECT_EQ(t.Pending(), 0u);
  });
}

TEST(ThreadTransport, GathersByRank) {
  RunThreads(5, [](Transport& t) {
    for (int round = 0; round < 50; ++round) {
      auto all = t.AllGather(std::string(t.rank(), 'x') + std::to_string(round));
      ASSERT_EQ(all.size(), 5u);
      for (int r = 0; r < 5; ++r) EXPECT_EQ(all[r], std::string(r, 'x') + std::to_string(round));
    }
  });
}

TEST(ThreadTransport, OneFailureEndsEveryRankAndIsShownOnce) {
  for (bool abort : {false, true}) {
    std::atomic<int> stopped = 0;
    try {
      RunThreads(5, [&](Transport& t) {
        if (t.rank() == 3) {
          std::this_thread::sleep_for(std::chrono::milliseconds(20));
          if (abort) t.Abort("the first error", 3);
          throw Error("the first error");
        }
        try {
          if (t.rank() == 0) t.AllGather("");
          t.WaitFor(t.Recv(3, 0, Numbers({0})), {Awaited::kTensor});
        } catch (const Aborted&) {
          ++stopped;
          throw;
        }
      });
      ADD_FAILURE() << "nothing thrown";
    } catch (const Error& e) {
      EXPECT_STREQ(e.what(), "the first error");
    }
    EXPECT_EQ(stopped, 4);
  }
}

TEST(ThreadTransport, RefusesMessagesOfAnotherSize) {
  try {
    RunThreads(2, [](Transport& t) {
      if (t.rank() == 0) t.WaitFor(t.Send(1, 0, Numbers({1, 2})), {Awaited::kTensor});
      if (t.rank() == 1) t.WaitFor(t.Recv(0, 0, Numbers({1, 2, 3})), {Awaited::kTensor});
    });
    ADD_FAILURE() << "nothing thrown";
  } catch (const Error& e) {
    EXPECT_STREQ(e.what(), "a message of 8 bytes arrived where 12 bytes were expected");
  }
}

// --- votes ---

std::vector<std::string> VoteTexts(int ranks, const std::function<std::string(int)>& error) {
  std::vector<std::string> texts(ranks);
  try {
    RunThreads(ranks, [&](Transport& t) {
      try {
        Vote(t, "loading", error(t.rank()));
      } catch (const AgreedError& e) {
        texts[t.rank()] = e.what();
        throw;
      }
    });
  } catch (const AgreedError&) {
  }
  return texts;
}

TEST(Vote, PassesWhenNoRankHasAnError) {
  EXPECT_EQ(VoteTexts(3, [](int) { return ""; }), std::vector<std::string>(3));
}

TEST(Vote, ShowsEveryRankTheSameErrors) {
  EXPECT_EQ(VoteTexts(3, [](int rank) { return rank == 1 ? "no such file" : ""; }),
            std::vector<std::string>(3, "loading on rank 1: no such file"));
  EXPECT_EQ(
      VoteTexts(6, [](int rank) { return rank == 1   ? "torn"
                                         : rank == 4 ? ""
                                                     : "no such file"; }),
      std::vector<std::string>(
          6, "loading on ranks 0, 2, 3, 5: no such file\nloading on rank 1: torn"));
  EXPECT_EQ(VoteTexts(3, [](int) { return "no such file"; }),
            std::vector<std::string>(3, "loading on every rank: no such file"));
  EXPECT_EQ(VoteTexts(1, [](int) { return "no such file"; }),
            std::vector<std::string>(1, "loading on rank 0: no such file"));
}

TEST(Phase, FailsOnEveryRankWhereItFailsOnOne) {
  std::vector<std::string> texts(3);
  std::vector<int> after(3);
  auto body = [&](Transport& t) {
    Phase(t, "opening", [] {});
    ++after[t.rank()];
    try {
      Phase(t, "loading", [&] {
        if (t.rank() == 2) throw Error("a.txt", "is torn", "copy it again");
      });
    } catch (const AgreedError& e) {
      texts[t.rank()] = e.what();
      throw;
    }
    ++after[t.rank()];
  };
  EXPECT_THROW(RunThreads(3, body), AgreedError);
  EXPECT_EQ(texts, std::vector<std::string>(
                       3, "loading on rank 2: a.txt: is torn\n  copy it again"));
  EXPECT_EQ(after, std::vector<int>(3, 1));
}

// Errors of torch have lines that differ between ranks; an empty error is still a failure.
TEST(Phase, ShowsWhatTorchThrowsWithoutItsBacktrace) {
  auto text = [](const std::string& what) -> std::string {
    return ErrorOf<AgreedError>([&] {
      RunThreads(2, [&](Transport& t) {
        Phase(t, "loading", [&] { throw std::runtime_error(what); });
      });
    });
  };
  EXPECT_EQ(text("no such key\nException raised from f at a.cpp:1\nframe #0\n"),
            "loading on every rank: no such key");
  EXPECT_EQ(text(""), "loading on every rank: failed");
}

// The rank that failed gives the reason; no other rank may.
TEST(ThreadTransport, AWaitForNoTransferIsKnownAndEndsWithTheRun) {
  std::atomic<bool> seen{false};
  EXPECT_THROW(RunThreads(2,
                          [&](Transport& t) {
                            if (t.rank() == 1) {
                              while (!seen) std::this_thread::yield();
                              throw Error("disk full");
                            }
                            t.WaitUntil([&]() -> Awaited {
                              seen = t.status().Read().awaits == Awaited{Awaited::kShards, 1};
                              return {Awaited::kShards, 1};
                            });
                          }),
               Error);
}

TEST(Phase, LeavesToAnotherRankWhatThatOneHasAborted) {
  std::string seen;
  try {
    RunThreads(2, [&](Transport& t) {
      if (t.rank() == 0) t.Abort("disk full", 1);
      try {
        Phase(t, "loading", [&] { t.WaitFor(t.Recv(0, 0, Numbers({1})), {Awaited::kTensor}); });
      } catch (const Aborted&) {
        seen = "aborted";
        throw;
      }
    });
  } catch (const std::exception&) {
  }
  EXPECT_EQ(seen, "aborted");
}

TEST(Vote, EveryErrorIsShownWithTheProgram) {
  AgreedError error(std::vector<std::string>{"loading on rank 0: torn\n  copy it again",
                                             "loading on rank 1: no such file"});
  EXPECT_EQ(error.Shown("pipewright-run"),
            "pipewright-run: loading on rank 0: torn\n  copy it again\n"
            "pipewright-run: loading on rank 1: no such file\n");
}

TEST(Agree, NamesTheRanksThatDiffer) {
  auto text = [](std::vector<uint64_t> hashes) -> std::string {
    return ErrorOf<AgreedError>([&] {
      RunThreads(static_cast<int>(hashes.size()),
                 [&](Transport& t) { Agree(t, hashes[t.rank()], "job.json"); });
    });
  };
  const std::string cure = "\n  give every host the same files and the same command line";
  EXPECT_EQ(text({7}), "");
  EXPECT_EQ(text({7, 7, 7}), "");
  EXPECT_EQ(text({7, 8, 7}),
            "job.json: not the same on every rank: rank 1 differs from ranks 0, 2" + cure);
  EXPECT_EQ(text({9, 7, 7, 7, 8}),
            "job.json: not the same on every rank: ranks 0, 4 differ from ranks 1-3" + cure);
}

}  // namespace
}  // namespace pipewright
