#include "runtime/transport/inbox.h"

#include <gtest/gtest.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cstring>
#include <map>
#include <random>
#include <string>
#include <vector>

namespace pipewright {
namespace {

// An inbox and its first sender's view of it, here in one process.
struct Pair {
  Pair() : inbox(2), outbox(Outbox::Open(inbox.name(), 0)) {}
  Inbox inbox;
  std::unique_ptr<Outbox> outbox;
};

Region Of(std::string& text) { return {text.data(), text.size()}; }

TEST(Inbox, HoldsWhatIsPut) {
  Pair pair;
  ASSERT_TRUE(pair.outbox);
  std::string text(10000, 'x');
  std::shared_ptr<void> place = pair.inbox.Allocate(text.size());
  ASSERT_TRUE(place);
  EXPECT_EQ(reinterpret_cast<uintptr_t>(place.get()) % 4096, 0u);
  Offer* offer = pair.inbox.Make(0, 7, 3, 1, {place.get(), text.size()});
  ASSERT_TRUE(offer);
  // Another tag, message, region or size does not match the request.
  EXPECT_FALSE(pair.outbox->Put(6, 3, 1, Of(text)));
  EXPECT_FALSE(pair.outbox->Put(7, 4, 1, Of(text)));
  EXPECT_FALSE(pair.outbox->Put(7, 3, 0, Of(text)));
  EXPECT_FALSE(pair.outbox->Put(7, 3, 1, {text.data(), text.size() - 1}));
  EXPECT_FALSE(offer->taken());
  EXPECT_EQ(static_cast<char*>(place.get())[0], 0);
  ASSERT_TRUE(pair.outbox->Put(7, 3, 1, Of(text)));
  EXPECT_TRUE(offer->taken());
  EXPECT_EQ(std::string(static_cast<char*>(place.get()), text.size()), text);
  EXPECT_FALSE(pair.outbox->Put(7, 3, 1, Of(text))) << "twice";
}

TEST(Inbox, OffersAreToOneSenderAndNotEndless) {
  Pair pair;
  auto second = Outbox::Open(pair.inbox.name(), 1);
  ASSERT_TRUE(second);
  std::string text = "text";
  auto place = pair.inbox.Allocate(4);
  std::vector<Offer*> offers;
  while (Offer* offer = pair.inbox.Make(0, 0, offers.size(), 0, {place.get(), 4}))
    offers.push_back(offer);
  EXPECT_EQ(offers.size(), 64u);
  EXPECT_FALSE(second->Put(0, 0, 0, Of(text)));
  EXPECT_TRUE(pair.inbox.Make(1, 0, 0, 0, {place.get(), 4}));
  EXPECT_TRUE(second->Put(0, 0, 0, Of(text)));
  offers[5]->Withdraw();
  EXPECT_EQ(pair.inbox.Make(0, 0, 99, 0, {place.get(), 4}), offers[5]);
}

// A sender that is delayed between two looks at an offer must notice that it is a different one.
TEST(Inbox, NoOfferLooksLikeAnEarlierOne) {
  Pair pair;
  auto place = pair.inbox.Allocate(4);
  uint64_t before = 0;
  for (uint64_t message = 0; message < 100; ++message) {
    Offer* offer = pair.inbox.Make(0, 0, message, 0, {place.get(), 4});
    ASSERT_TRUE(offer);
    EXPECT_GT(offer->state, before);
    before = offer->state;
    offer->Withdraw();
  }
}

TEST(Inbox, OtherMemoryIsNotOffered) {
  Pair pair;
  std::string text(100, 'x');
  EXPECT_FALSE(pair.inbox.Make(0, 0, 0, 0, Of(text)));
  EXPECT_FALSE(Inbox(0).Allocate(1)) << "nobody could write there";
}

TEST(Inbox, OnlyTheRightFileIsMapped) {
  Inbox inbox(1);
  InboxName name = inbox.name();
  ++name.key;
  EXPECT_FALSE(Outbox::Open(name, 0));
  name = inbox.name();
  name.file = 0;
  EXPECT_FALSE(Outbox::Open(name, 0));
  name.file = -1;
  EXPECT_FALSE(Outbox::Open(name, 0));
  name = inbox.name();
  name.process = 1 << 30;
  EXPECT_FALSE(Outbox::Open(name, 0));
}

TEST(Inbox, MemoryOutlivesIt) {
  std::shared_ptr<void> place;
  {
    Inbox inbox(1);
    place = inbox.Allocate(1 << 20);
    ASSERT_TRUE(place);
  }
  std::memset(place.get(), 1, 1 << 20);
}

// For any order of allocating and freeing, allocations never overlap, and memory is reused.
TEST(Inbox, MemoryIsUsedAgain) {
  Inbox inbox(1);
  std::mt19937 random(1);
  std::vector<std::pair<std::shared_ptr<void>, size_t>> held;
  uintptr_t lowest = UINTPTR_MAX, highest = 0;
  for (int i = 0; i < 5000; ++i) {
    if (held.size() < 20 && random() % 2) {
      const size_t size = 1 + random() % 50000;
      held.emplace_back(inbox.Allocate(size), size);
      ASSERT_TRUE(held.back().first);
      std::memset(held.back().first.get(), static_cast<int>(held.size()), size);
      const auto at = reinterpret_cast<uintptr_t>(held.back().first.get());
      lowest = std::min(lowest, at), highest = std::max(highest, at + size);
    } else if (!held.empty()) {
      held.erase(held.begin() + random() % held.size());
    }
    std::map<uintptr_t, size_t> sorted;
    for (const auto& [place, size] : held) sorted[reinterpret_cast<uintptr_t>(place.get())] = size;
    uintptr_t end = 0;
    ASSERT_EQ(sorted.size(), held.size());
    for (const auto& [at, size] : sorted) {
      ASSERT_GE(at, end);
      end = at + size;
    }
  }
  // 20 allocations of at most 50,000 bytes, each on its own pages, and the gaps between them.
  EXPECT_LT(highest - lowest, 3u << 20);
  held.clear();
  const auto all = reinterpret_cast<uintptr_t>(inbox.Allocate(highest - lowest).get());
  EXPECT_EQ(all, lowest) << "what was given back is one range again";
}

uint64_t Held(const Inbox& inbox) {
  struct stat file = {};
  EXPECT_EQ(fstat(static_cast<int>(inbox.name().file), &file), 0);
  return static_cast<uint64_t>(file.st_blocks) * 512;
}

// The worst order of sizes for memory that cannot be moved: each round doubles the size, with gaps
// of half of it.
TEST(Inbox, ReusesGaps) {
  Inbox inbox(1);
  constexpr uint64_t kMost = 16 << 20;
  std::vector<std::pair<std::shared_ptr<void>, uint64_t>> held, kept;
  uint64_t live = 0, most = 0;
  for (uint64_t size = 8192; size <= kMost; size *= 2) {
    for (; live + size <= kMost; live += size) {
      held.emplace_back(inbox.Allocate(size), size);
      ASSERT_TRUE(held.back().first);
      std::memset(held.back().first.get(), 1, size);
      most = std::max(most, Held(inbox));
    }
    for (size_t i = 0; i < held.size(); ++i) {
      if (i % 2) kept.push_back(held[i]);
      else live -= held[i].second;
    }
    held.swap(kept);
    kept.clear();
  }
  EXPECT_LE(most, 2 * kMost + (1 << 20));
}

TEST(Inbox, GivesBackWhatWasUsed) {
  Inbox inbox(1);
  std::memset(inbox.Allocate(64 << 20).get(), 1, 64 << 20);
  EXPECT_GE(Held(inbox), 64u << 20) << "the next minibatch may be alike";
  for (int i = 0; i < 2000; ++i) inbox.Allocate(100000);
  EXPECT_LE(Held(inbox), 1u << 20);
  auto place = inbox.Allocate(64 << 20);
  ASSERT_TRUE(place);
  std::memset(place.get(), 1, 64 << 20);
}

// The mapping is as large as the machine's memory: it would use up addresses that the rank needs.
TEST(Inbox, NoneWhereAddressesAreLimited) {
  Inbox other(1);
  auto check = [&] {
    rlimit limit = {};
    getrlimit(RLIMIT_AS, &limit);
    limit.rlim_cur = uint64_t{1} << 46;
    if (setrlimit(RLIMIT_AS, &limit) != 0) _exit(1);
    _exit(Inbox(1).Allocate(1) || Outbox::Open(other.name(), 0) ? 2 : 0);
  };
  EXPECT_EXIT(check(), testing::ExitedWithCode(0), "");
}

// The ranks of a large machine map each other's inboxes: 2^47 bytes must suffice for all of them.
TEST(Inbox, AddressesSufficeForMany) {
  EXPECT_LE(Inbox(1000).name().size, (uint64_t{1} << 45) / 1001);
  EXPECT_GT(Inbox(1000).name().size, uint64_t{1} << 30);
}

}  // namespace
}  // namespace pipewright
