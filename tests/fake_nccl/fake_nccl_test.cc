// Tests the fake NCCL: values arrive, what hangs NCCL hangs here, and errors are those of NCCL.
#include <gtest/gtest.h>
#include <unistd.h>

#include <atomic>
#include <cstdio>
#include <functional>
#include <thread>

#include "nccl_ranks.h"
#include "tests/device/gate.h"
#include "tests/error_text.h"

namespace pipewright {

namespace {

using sim::Queue;

void Send(const NcclRank& me, const float* from, size_t count, int peer) {
  CheckNccl(Nccl().Send(from, count, kNcclFloat32, peer, me.comm, me.stream), "ncclSend", me.comm);
}
void Recv(const NcclRank& me, float* to, size_t count, int peer) {
  CheckNccl(Nccl().Recv(to, count, kNcclFloat32, peer, me.comm, me.stream), "ncclRecv", me.comm);
}
void AllReduce(const NcclRank& me, const void* from, void* to, size_t count, int type) {
  CheckNccl(Nccl().AllReduce(from, to, count, type, kNcclSum, me.comm, me.stream), "ncclAllReduce",
            me.comm);
}
void GroupStart() { CheckNccl(Nccl().GroupStart(), "ncclGroupStart", nullptr); }
void GroupEnd(const NcclRank& me) { CheckNccl(Nccl().GroupEnd(), "ncclGroupEnd", me.comm); }
void Destroy(const NcclRank& me) {
  CheckNccl(Nccl().CommFinalize(me.comm), "ncclCommFinalize", me.comm);
  CheckNccl(Nccl().CommDestroy(me.comm), "ncclCommDestroy", me.comm);
}

// Looks long enough to find a stream that moves; a busy machine only makes it look less.
bool StaysBusy(const std::vector<Queue*>& streams) {
  std::this_thread::sleep_for(std::chrono::milliseconds(50));
  for (Queue* stream : streams)
    if (sim::IsIdle(*stream)) return false;
  return true;
}

void RunRanks(int ranks, const std::function<void(NcclRank&)>& act) {
  EXPECT_EQ(OnThreads(ranks, act), "");
}

int AsyncError(void* comm) {
  int result = kNcclSuccess;
  CheckNccl(Nccl().CommGetAsyncError(comm, &result), "ncclCommGetAsyncError", comm);
  return result;
}

int AwaitAsyncError(void* comm) {
  while (AsyncError(comm) == kNcclSuccess)
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  return AsyncError(comm);
}

// Rounds in which each rank sends a value to every other rank and adds what it gets. Returns the
// values, which depend on the order of all of it.
std::vector<float> Rounds(const NcclRank& me, int rounds) {
  constexpr size_t kCount = 1000;
  Queue& stream = *me.stream;
  float* mine = ToDevice(stream, std::vector<float>(kCount, 1.0f + 0.37f * float(me.rank)));
  std::vector<float*> theirs;
  for (int peer = 0; peer < me.ranks; ++peer)
    theirs.push_back(EmptyOnDevice<float>(stream, kCount));
  for (int round = 0; round < rounds; ++round) {
    GroupStart();
    for (int peer = 0; peer < me.ranks; ++peer)
      if (peer != me.rank) {
        Send(me, mine, kCount, peer);
        Recv(me, theirs[size_t(peer)], kCount, peer);
      }
    GroupEnd(me);
    std::vector<sim::Access> accesses{{mine, kCount * sizeof(float), true}};
    for (const float* from : theirs) accesses.push_back({from, kCount * sizeof(float), false});
    sim::Launch(
        stream, "add",
        [=] {
          auto* to = static_cast<float*>(sim::ShadowOf(mine));
          for (int peer = 0; peer < me.ranks; ++peer)
            for (size_t i = 0; i < kCount && peer != me.rank; ++i)
              to[i] = to[i] * 0.9f + static_cast<float*>(sim::ShadowOf(theirs[size_t(peer)]))[i] /
                                         float(3 + round);
        },
        accesses);
  }
  return ToHost(stream, mine, kCount);
}

}  // namespace

// What processes run: `fake_nccl_tests --rank RANK RANKS ID ROLE`.
static int RunRole(const NcclRank& me, const std::string& role) {
  if (role == "rounds") {
    for (float value : Rounds(me, 20)) std::printf("%a\n", static_cast<double>(value));
    Destroy(me);
    return 0;
  }
  if (role == "leave") {  // a rank that dies without a word
    std::fflush(stdout);
    _exit(0);
  }
  return 1;
}

TEST(FakeNccl, IsLoadedByName) {
  EXPECT_EQ(Nccl().version, 22907);
  EXPECT_NE(Nccl().path.find("libnccl.so.2"), std::string::npos) << Nccl().path;
}

TEST(FakeNccl, AnOldVersionIsRefused) {
  const ScopedVariable version("FAKE_NCCL_VERSION", "21703");
  EXPECT_EQ(ErrorOf([] { LoadNccl("libnccl.so.2"); }),
            Nccl().path +
                ": this is NCCL 2.17.3, expected 2.18.0 or later\n"
                "  install a newer nvidia-nccl wheel, or put the folder of a newer libnccl.so.2 "
                "first in LD_LIBRARY_PATH");
}

// Messages of any sizes, in both directions, in one group.
TEST(FakeNccl, ValuesArriveInOrder) {
  RunRanks(3, [](NcclRank& me) {
    Queue& stream = *me.stream;
    const int next = (me.rank + 1) % 3, last = (me.rank + 2) % 3;
    std::vector<std::pair<float*, size_t>> got;
    GroupStart();
    for (size_t n : {1, 7, 100000, 0, 3}) {
      const float value = float(me.rank * 10 + int(n % 10));
      Send(me, ToDevice(stream, std::vector<float>(n, value)), n, next);
      got.emplace_back(EmptyOnDevice<float>(stream, n), n);
      Recv(me, got.back().first, n, last);
    }
    GroupEnd(me);
    for (auto [address, n] : got)
      EXPECT_EQ(ToHost(stream, address, n), std::vector<float>(n, float(last * 10 + int(n % 10))));
    Destroy(me);
  });
}

// Sums of a group come one after the other, in place or not, and in the order of the ranks.
TEST(FakeNccl, AddsInTheOrderOfTheRanksOrFromTheLast) {
  const std::vector<float> values = {1, 1e-8f, -1};  // by rank
  for (const char* reverse : {"0", "1"}) {
    const ScopedVariable order("FAKE_NCCL_REVERSE", reverse);
    const float sum =
        *reverse == '0' ? (values[0] + values[1]) + values[2] : (values[2] + values[1]) + values[0];
    RunRanks(3, [&](NcclRank& me) {
      Queue& stream = *me.stream;
      float* own = ToDevice(stream, std::vector<float>(1000, values[size_t(me.rank)]));
      double* doubles = ToDevice(stream, std::vector<double>{0.5, double(me.rank)});
      float* to = EmptyOnDevice<float>(stream, 1000);
      GroupStart();
      AllReduce(me, own, to, 1000, kNcclFloat32);
      AllReduce(me, doubles, doubles, 2, kNcclFloat64);
      GroupEnd(me);
      EXPECT_EQ(ToHost(stream, to, 1000), std::vector<float>(1000, sum));
      EXPECT_EQ(ToHost(stream, doubles, 2), (std::vector<double>{1.5, 3}));
      Destroy(me);
    });
  }
}

TEST(FakeNccl, SumsOfDifferentSizesFail) {
  RunRanks(2, [](NcclRank& me) {
    float* own = ToDevice(*me.stream, std::vector<float>(2));
    AllReduce(me, own, own, size_t(1 + me.rank), kNcclFloat32);
    // The first rank finds out, and leaves the other.
    EXPECT_EQ(AwaitAsyncError(me.comm), me.rank == 0 ? 5 : int{kNcclRemoteError});
    EXPECT_EQ(Nccl().CommAbort(me.comm), kNcclSuccess);
    sim::Synchronize(*me.stream);
  });
}

TEST(FakeNccl, ARankSendsToItself) {
  RunRanks(1, [](NcclRank& me) {
    float* to = EmptyOnDevice<float>(*me.stream, 2);
    GroupStart();
    Send(me, ToDevice<float>(*me.stream, {3, 4}), 2, 0);
    Recv(me, to, 2, 0);
    GroupEnd(me);
    EXPECT_EQ(ToHost(*me.stream, to, 2), (std::vector<float>{3, 4}));
    Destroy(me);
  });
}

// Processes, and threads of one, with delays or without, have the same bits.
TEST(FakeNccl, DelaysChangeNoBit) {
  constexpr int kRanks = 3;
  std::vector<std::string> expected(kRanks);
  RunRanks(kRanks, [&](NcclRank& me) {
    char text[64];
    for (float value : Rounds(me, 20)) {
      std::snprintf(text, sizeof(text), "%a\n", static_cast<double>(value));
      expected[size_t(me.rank)] += text;
    }
    Destroy(me);
  });
  for (const char* delay : {"0", "1000"}) {
    const ScopedVariable messages("FAKE_NCCL_DELAY_US", delay), tasks("SIM_DELAY_US", delay);
    const NcclId id = NewId();
    std::vector<RankProcess> processes;
    for (int rank = 0; rank < kRanks; ++rank)
      processes.push_back(StartProcess("rounds", id, rank, kRanks));
    for (size_t rank = 0; rank < kRanks; ++rank)
      EXPECT_EQ(EndOf(processes[rank]), expected[rank]) << "delay " << delay;
  }
}

TEST(FakeNccl, UseWithoutAnEventIsARace) {
  RunRanks(2, [](NcclRank& me) {
    float* to = EmptyOnDevice<float>(*me.stream, 2);
    float* from = ToDevice<float>(*me.stream, {3, 4});
    Queue& other = *sim::NewQueue(me.rank);
    sim::Block(other, sim::Record(*me.stream));
    GroupStart();
    Send(me, from, 2, 1 - me.rank);
    Recv(me, to, 2, 1 - me.rank);
    GroupEnd(me);
    auto use = [&](const float* address, bool writes) {
      return ErrorOf<std::exception>(
          [&] { sim::Launch(other, "use", [] {}, {{address, 2 * sizeof(float), writes}}); });
    };
    EXPECT_NE(use(to, false).find("reads what nccl on"), std::string::npos) << use(to, false);
    EXPECT_NE(use(from, true).find("writes what nccl on"), std::string::npos) << use(from, true);
    EXPECT_EQ(use(from, false), "");
    sim::Block(other, sim::Record(*me.stream));
    EXPECT_EQ(use(to, false), "");
    sim::Synchronize(other);
    Destroy(me);
  });
}

// Two ranks that both send and then receive, each call a group of its own.
TEST(FakeNccl, TwoSendsThatMeetHangTheStreams) {
  const ScopedVariable lazy("FAKE_NCCL_LAZY", "0");
  std::vector<NcclRank> ranks(2);
  RunRanks(2, [&](NcclRank& me) {
    Send(me, ToDevice<float>(*me.stream, {1}), 1, 1 - me.rank);
    Recv(me, EmptyOnDevice<float>(*me.stream, 1), 1, 1 - me.rank);
    ranks[size_t(me.rank)] = me;
  });
  EXPECT_TRUE(StaysBusy({ranks[0].stream, ranks[1].stream}));
  for (const NcclRank& rank : ranks) EXPECT_EQ(AsyncError(rank.comm), kNcclSuccess);
  for (const NcclRank& rank : ranks) {
    EXPECT_EQ(Nccl().CommAbort(rank.comm), kNcclSuccess);
    sim::Synchronize(*rank.stream);
  }
}

// The same at the first use of a connection, which blocks the host.
TEST(FakeNccl, TheFirstUseBlocksTheHost) {
  std::vector<void*> comms(2);
  std::atomic<int> begun = 0, returned = 0;
  std::thread watchdog([&] {
    while (begun < 2) std::this_thread::sleep_for(std::chrono::milliseconds(1));
    std::this_thread::sleep_for(std::chrono::milliseconds(50));
    EXPECT_EQ(returned, 0);
    for (void* comm : comms) EXPECT_EQ(Nccl().CommAbort(comm), kNcclSuccess);
  });
  RunRanks(2, [&](NcclRank& me) {
    comms[size_t(me.rank)] = me.comm;
    float* from = ToDevice<float>(*me.stream, {1});
    ++begun;
    EXPECT_NE(ErrorOf([&] { Send(me, from, 1, 1 - me.rank); }), "");
    ++returned;
    EXPECT_NE(ErrorOf([&] { Send(me, from, 1, 1 - me.rank); }), "");
  });
  watchdog.join();
}

// Each rank receives before it sends, on two streams: by two communicators, messages pass each
// other; one is a queue.
TEST(FakeNccl, OperationsRunInTheOrderOfTheirLaunch) {
  const ScopedVariable lazy("FAKE_NCCL_LAZY", "0");
  const NcclId second = NewId();
  std::vector<NcclRank> ranks(2);
  RunRanks(2, [&](NcclRank& me) {
    NcclRank other = MakeRank(second, me.rank, 2);
    if (me.rank == 1) std::swap(me.comm, other.comm);
    float* from = ToDevice<float>(*other.stream, {float(5 + me.rank)});
    float* to = EmptyOnDevice<float>(*me.stream, 1);
    Recv(me, to, 1, 1 - me.rank);
    Send(other, from, 1, 1 - me.rank);
    EXPECT_EQ(ToHost(*me.stream, to, 1), std::vector<float>{float(6 - me.rank)});
    sim::Synchronize(*other.stream);
    Destroy(me.rank == 0 ? other : me);
    if (me.rank == 0)
      other.comm = me.comm;
    else
      me.comm = other.comm;
    Recv(me, to, 1, 1 - me.rank);
    Send(other, from, 1, 1 - me.rank);
    ranks[size_t(me.rank)] = other;
  });
  EXPECT_TRUE(StaysBusy({ranks[0].stream, ranks[1].stream}));
  for (const NcclRank& rank : ranks) {
    EXPECT_EQ(Nccl().CommAbort(rank.comm), kNcclSuccess);
    sim::Synchronize(*rank.stream);
  }
}

// An abort lets what was launched on the communicator pass by, and waits until it has: what comes
// after a stuck transfer of another communicator needs the abort of that, too.
TEST(FakeNccl, AnAbortWaitsForTheStream) {
  const ScopedVariable lazy("FAKE_NCCL_LAZY", "0");
  const NcclId second = NewId();
  RunRanks(2, [&](NcclRank& me) {
    NcclRank other = MakeRank(second, me.rank, 2);
    other.stream = me.stream;
    float* to = EmptyOnDevice<float>(*me.stream, 1);
    Recv(me, to, 1, 1 - me.rank);
    Recv(other, to, 1, 1 - me.rank);
    std::atomic<bool> ended = false;
    std::thread abort([&] {
      EXPECT_EQ(Nccl().CommAbort(other.comm), kNcclSuccess);
      ended = true;
    });
    EXPECT_TRUE(StaysBusy({me.stream}));
    EXPECT_FALSE(ended);
    EXPECT_EQ(Nccl().CommAbort(me.comm), kNcclSuccess);
    abort.join();
    sim::Synchronize(*me.stream);
  });
}

// An abort does not wait for what a failed stream does not run.
TEST(FakeNccl, AnAbortAfterTheStreamHasFailed) {
  RunRanks(1, [](NcclRank& me) {
    sim::Gate gate(*me.stream);
    sim::Launch(*me.stream, "fail", [] { throw std::runtime_error("the device has failed"); }, {});
    float* to = EmptyOnDevice<float>(*me.stream, 1);
    GroupStart();
    Send(me, ToDevice<float>(*me.stream, {8}), 1, 0);
    Recv(me, to, 1, 0);
    GroupEnd(me);
    gate.Open();
    EXPECT_EQ(Nccl().CommAbort(me.comm), kNcclSuccess);
  });
}

// One group may have operations of several communicators.
TEST(FakeNccl, AGroupOverTwoCommunicators) {
  const NcclId second = NewId();
  RunRanks(2, [&](NcclRank& me) {
    const NcclRank other = MakeRank(second, me.rank, 2);
    float* from = ToDevice<float>(*me.stream, {float(me.rank)});
    float* to = EmptyOnDevice<float>(*other.stream, 1);
    // Rank 0 sends by the first and rank 1 by the second.
    GroupStart();
    for (const NcclRank* by : {static_cast<const NcclRank*>(&me), &other})
      if ((by == &me) == (me.rank == 0))
        CheckNccl(Nccl().Send(from, 1, kNcclFloat32, 1 - me.rank, by->comm, me.stream), "ncclSend",
                  by->comm);
      else
        CheckNccl(Nccl().Recv(to, 1, kNcclFloat32, 1 - me.rank, by->comm, other.stream), "ncclRecv",
                  by->comm);
    GroupEnd(me);
    EXPECT_EQ(ToHost(*other.stream, to, 1), std::vector<float>{float(1 - me.rank)});
    sim::Synchronize(*me.stream);
    Destroy(me);
    Destroy(other);
  });
}

// The death of a peer is an error of the communicator; the stream stays stuck until the abort.
TEST(FakeNccl, APeerDies) {
  const ScopedVariable lazy("FAKE_NCCL_LAZY", "0");
  const NcclId id = NewId();
  const RankProcess peer = StartProcess("leave", id, 1, 2);
  const NcclRank me = MakeRank(id, 0, 2);
  Recv(me, EmptyOnDevice<float>(*me.stream, 1), 1, 1);
  EXPECT_EQ(AwaitAsyncError(me.comm), kNcclRemoteError);
  EXPECT_EQ(ErrorOf([&] { CheckNccl(AsyncError(me.comm), "ncclRecv", me.comm); }),
            "ncclRecv: NCCL 2.29.7 failed with result 6, remote process exited or there was a "
            "network error: the connection to a rank is closed\n"
            "  set NCCL_DEBUG=INFO for NCCL's own log");
  EXPECT_TRUE(StaysBusy({me.stream}));
  EXPECT_EQ(Nccl().CommAbort(me.comm), kNcclSuccess);
  sim::Synchronize(*me.stream);
  EXPECT_EQ(EndOf(peer), "");
}

TEST(FakeNccl, APeerDiesBeforeTheFirstUse) {
  const NcclId id = NewId();
  const RankProcess peer = StartProcess("leave", id, 1, 2);
  const NcclRank me = MakeRank(id, 0, 2);
  EXPECT_EQ(
      Nccl().Recv(EmptyOnDevice<float>(*me.stream, 1), 1, kNcclFloat32, 1, me.comm, me.stream),
      kNcclRemoteError);
  EXPECT_EQ(AsyncError(me.comm), kNcclRemoteError);
  EXPECT_EQ(Nccl().CommAbort(me.comm), kNcclSuccess);
  EXPECT_EQ(EndOf(peer), "");
}

TEST(FakeNccl, AnInjectedErrorStopsTheCommunicator) {
  const ScopedVariable at("FAKE_NCCL_FAIL_AT", "3"), code("FAKE_NCCL_FAIL_CODE", "3");
  RunRanks(1, [](NcclRank& me) {
    float* to = EmptyOnDevice<float>(*me.stream, 1);
    float* from = ToDevice<float>(*me.stream, {8});
    auto round = [&] {
      GroupStart();
      Send(me, from, 1, 0);
      Recv(me, to, 1, 0);
      GroupEnd(me);
    };
    round();
    EXPECT_EQ(ToHost(*me.stream, to, 1), std::vector<float>{8});
    round();
    EXPECT_EQ(AwaitAsyncError(me.comm), 3);
    EXPECT_EQ(ErrorOf([&] { Send(me, from, 1, 0); }),
              "ncclSend: NCCL 2.29.7 failed with result 3, internal error: "
              "FAKE_NCCL_FAIL_AT\n  set NCCL_DEBUG=INFO for NCCL's own log");
    EXPECT_EQ(Nccl().CommAbort(me.comm), kNcclSuccess);
    sim::Synchronize(*me.stream);
  });
}

// NCCL would hang, or damage memory.
TEST(FakeNccl, DifferentSizesAreAnError) {
  RunRanks(2, [](NcclRank& me) {
    float* at = ToDevice<float>(*me.stream, {1, 2});
    if (me.rank == 0) {
      Send(me, at, 2, 1);
      EXPECT_EQ(AwaitAsyncError(me.comm), 5);
      EXPECT_STREQ(Nccl().GetLastError(me.comm),
                   "rank 0 has 2 elements of type 7, and rank 1 1 elements of "
                   "type 7");
    } else {
      Recv(me, at, 1, 0);
      // It waits for the data until rank 0 closes the connection.
      EXPECT_EQ(AwaitAsyncError(me.comm), kNcclRemoteError);
    }
    EXPECT_EQ(Nccl().CommAbort(me.comm), kNcclSuccess);
    sim::Synchronize(*me.stream);
  });
}

TEST(FakeNccl, ARankThatDoesNotComeIsAnError) {
  const ScopedVariable seconds("FAKE_NCCL_INIT_S", "0");
  EXPECT_EQ(ErrorOf([] { MakeRank(NewId(), 0, 2); }),
            "ncclCommInitRank: NCCL 2.29.7 failed with result 2, unhandled system error: rank 0 of "
            "2 waited for the others in vain\n  set NCCL_DEBUG=INFO for NCCL's own log");
}

TEST(FakeNccl, MistakesInCallsAreErrors) {
  RunRanks(1, [](NcclRank& me) {
    float* at = ToDevice<float>(*me.stream, {1});
    EXPECT_EQ(Nccl().Send(at, 1, kNcclFloat32, 1, me.comm, me.stream), 4);
    EXPECT_STREQ(Nccl().GetLastError(me.comm), "there is no rank 1");
    EXPECT_EQ(Nccl().Send(at, 1, 77, 0, me.comm, me.stream), 4);
    EXPECT_EQ(Nccl().Send(at, 1, kNcclFloat32, 0, nullptr, me.stream), 4);
    EXPECT_EQ(Nccl().Send(at, 1, kNcclFloat32, 0, me.comm, nullptr), 4);
    EXPECT_EQ(Nccl().Send(at, 1, kNcclFloat32, 0, me.comm, sim::NewQueue(1)), 4);
    EXPECT_STREQ(Nccl().GetLastError(me.comm),
                 "the stream is not on device 0, as the communicator is");
    EXPECT_EQ(Nccl().GroupEnd(), 5);
    // A group with a mistake is not launched.
    GroupStart();
    EXPECT_EQ(Nccl().Send(at, 1, kNcclFloat32, 3, me.comm, me.stream), 4);
    Recv(me, at, 1, 0);
    EXPECT_EQ(Nccl().GroupEnd(), 4);
    sim::Synchronize(*me.stream);
    NcclConfig config;
    config.blocking = 0;
    void* comm = nullptr;
    EXPECT_EQ(Nccl().CommInitRankConfig(&comm, 1, NewId(), 0, &config), 4);
    Destroy(me);
  });
}

}  // namespace pipewright

int main(int argc, char** argv) {
  if (argc == 6 && std::string(argv[1]) == "--rank") {
    pipewright::NcclId id{};
    std::snprintf(id.bytes, sizeof(id.bytes), "%s", argv[4]);
    return pipewright::RunRole(pipewright::MakeRank(id, std::stoi(argv[2]), std::stoi(argv[3])),
                               argv[5]);
  }
  testing::InitGoogleTest(&argc, argv);
  return RUN_ALL_TESTS();
}
