#include "runtime/transport/thread_transport.h"

#include <atomic>
#include <chrono>
#include <climits>
#include <condition_variable>
#include <cstdio>
#include <cstring>
#include <deque>
#include <exception>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "base/process/terminal.h"
#include "runtime/exec/clock.h"
#include "runtime/exec/message_size.h"
#include "runtime/transport/fault_transport.h"

namespace pipewright {

namespace {

struct ThreadToken : Completion {
  explicit ThreadToken(int rank) : rank(rank) {}
  const int rank;     // the rank that waits for it
  std::string error;  // written before `done`
  std::atomic<bool> done{false};
};

struct Post {
  int tag;
  Bundle bundle;
  std::shared_ptr<ThreadToken> token;
};

// Unmatched posts of one rank for another.
struct Channel {
  std::mutex mutex;
  std::deque<Post> sends, recvs;  // guarded by mutex
};

struct Sleeper {
  std::mutex mutex;
  std::condition_variable wake;
};

// State that the ranks share.
struct Hub {
  Hub(int size, const ThreadOptions& options)
      : size(size), options(options), channels(size_t(size) * size), sleepers(size), gather(size) {
    for (int rank = 0; rank < size; ++rank) {
      const std::string& folder = options.status_folder;
      statuses.emplace_back(folder.empty() ? "" : StatusPath(folder, rank), rank);
    }
  }

  const int size;
  const ThreadOptions options;
  std::deque<Channel> channels;     // [source * size + destination]
  std::deque<Sleeper> sleepers;     // [rank]
  std::deque<StatusFile> statuses;  // [rank]

  std::atomic<bool> failed{false};
  std::mutex error_mutex;
  std::exception_ptr error;  // the first error; guarded by error_mutex

  std::mutex gather_mutex;
  std::condition_variable gathered;
  std::vector<std::string> gather, result;  // these four are guarded by gather_mutex
  int arrived = 0;
  int64_t generation = 0;

  void Fail(std::exception_ptr cause) {
    {
      std::lock_guard lock(error_mutex);
      if (!error) error = cause;
    }
    failed = true;
    for (Sleeper& sleeper : sleepers) {
      std::lock_guard lock(sleeper.mutex);
      sleeper.wake.notify_all();
    }
    std::lock_guard lock(gather_mutex);
    gathered.notify_all();
  }

  void Check() const {
    if (failed.load(std::memory_order_relaxed)) throw Aborted("another rank has failed");
  }

  void Complete(const std::shared_ptr<ThreadToken>& token, int caller, std::string error = "") {
    token->error = std::move(error);
    if (token->rank == caller) {
      token->done.store(true, std::memory_order_release);
      return;
    }
    Sleeper& sleeper = sleepers[token->rank];
    std::lock_guard lock(sleeper.mutex);
    token->done.store(true, std::memory_order_release);
    sleeper.wake.notify_all();
  }
};

class ThreadTransport : public Transport {
 public:
  ThreadTransport(Hub& hub, int rank) : hub_(hub), rank_(rank) { SetStatus(hub.statuses[rank]); }
  int rank() const override { return rank_; }
  int size() const override { return hub_.size; }
  int max_tag() const override { return INT_MAX; }

  Token Send(int peer, int tag, Bundle bundle) override {
    RequireHostMemory(bundle);
    return Match(hub_.channels[size_t(rank_) * hub_.size + peer], tag, std::move(bundle), true);
  }
  Token Recv(int peer, int tag, Bundle bundle) override {
    RequireHostMemory(bundle);
    return Match(hub_.channels[size_t(peer) * hub_.size + rank_], tag, std::move(bundle), false);
  }

  bool Test(const Token& token) override {
    auto& t = static_cast<ThreadToken&>(*token);
    if (!t.done.load(std::memory_order_acquire)) {
      hub_.Check();
      return false;
    }
    if (!t.error.empty()) throw Error(t.error);
    return true;
  }

  size_t Pending() override {
    hub_.Check();
    size_t pending = 0;
    for (int peer = 0; peer < hub_.size; ++peer) {
      Channel& out = hub_.channels[size_t(rank_) * hub_.size + peer];
      Channel& in = hub_.channels[size_t(peer) * hub_.size + rank_];
      {
        std::lock_guard lock(out.mutex);
        pending += out.sends.size();
      }
      std::lock_guard lock(in.mutex);
      pending += in.recvs.size();
    }
    return pending;
  }

  std::vector<std::string> AllGather(const std::string& bytes) override {
    std::unique_lock lock(hub_.gather_mutex);
    hub_.Check();
    hub_.gather[rank_] = bytes;
    int64_t mine = hub_.generation;
    if (++hub_.arrived == hub_.size) {
      hub_.result.assign(hub_.size, "");
      hub_.result.swap(hub_.gather);
      hub_.arrived = 0;
      ++hub_.generation;
      hub_.gathered.notify_all();
    } else {
      status().WaitFor({Awaited::kEveryRank});
      hub_.gathered.wait(lock, [&] { return hub_.generation != mine || hub_.failed; });
      status().WaitFor({});
      if (hub_.generation == mine) hub_.Check();
    }
    return hub_.result;
  }

  [[noreturn]] void Abort(const std::string& message, int) override {
    hub_.Fail(std::make_exception_ptr(Error(message)));
    throw Aborted(message);
  }

 private:
  void Wait(const Token& token) override {
    for (int i = 0; i < 4; ++i) {
      if (Test(token)) return;
      std::this_thread::yield();
    }
    auto& t = static_cast<ThreadToken&>(*token);
    Sleeper& sleeper = hub_.sleepers[rank_];
    {
      std::unique_lock lock(sleeper.mutex);
      sleeper.wake.wait(lock,
                        [&] { return t.done.load(std::memory_order_acquire) || hub_.failed; });
    }
    Test(token);
  }

  // Matches a post with the first one of the other side with the same tag and copies the data, or
  // queues it. The later side copies, outside the lock.
  Token Match(Channel& channel, int tag, Bundle bundle, bool send) {
    hub_.Check();
    auto token = std::make_shared<ThreadToken>(rank_);
    Post other;
    {
      std::lock_guard lock(channel.mutex);
      auto& theirs = send ? channel.recvs : channel.sends;
      auto at = theirs.begin();
      while (at != theirs.end() && at->tag != tag) ++at;
      if (at == theirs.end()) {
        (send ? channel.sends : channel.recvs).push_back({tag, std::move(bundle), token});
        return token;
      }
      other = std::move(*at);
      theirs.erase(at);
    }
    const Bundle& from = send ? bundle : other.bundle;
    const Bundle& to = send ? other.bundle : bundle;
    const auto& receiver = send ? other.token : token;
    const auto& sender = send ? token : other.token;
    std::string error = SizeMismatch(from, to);
    if (error.empty())
      for (size_t i = 0; i < from.regions.size(); ++i)
        if (from.regions[i].bytes)
          std::memcpy(to.regions[i].data, from.regions[i].data, from.regions[i].bytes);
    other.bundle = {};  // release before its rank learns that it is free
    hub_.Complete(receiver, rank_, error);
    hub_.Complete(sender, rank_);
    return token;
  }

  Hub& hub_;
  const int rank_;
};

// Checks periodically whether the ranks still make progress.
class Monitor {
 public:
  explicit Monitor(Hub& hub) : hub_(hub) {
    if (hub.options.stall.limit > 0 || hub.options.stall.report > 0 || hub.options.tick)
      thread_ = std::thread([this] { Run(); });
  }
  ~Monitor() {
    if (!thread_.joinable()) return;
    {
      std::lock_guard lock(mutex_);
      stop_ = true;
    }
    wake_.notify_one();
    thread_.join();
  }

 private:
  void Run() {
    StallJudge judge(hub_.options.stall);
    std::unique_lock lock(mutex_);
    while (!wake_.wait_for(lock, std::chrono::milliseconds(250), [&] { return stop_; })) {
      if (hub_.options.tick) hub_.options.tick(hub_.statuses);
      std::vector<RankStatus> all;
      for (const StatusFile& status : hub_.statuses) all.push_back(status.Read());
      StallJudge::Verdict verdict = judge.Look(Now(), all);
      if (verdict.fatal) return hub_.Fail(std::make_exception_ptr(Error(verdict.report)));
      if (!verdict.report.empty())
        std::fprintf(stderr, "%s%s\n", BeforeMessage(), verdict.report.c_str());
    }
  }

  Hub& hub_;
  std::mutex mutex_;
  std::condition_variable wake_;
  bool stop_ = false;  // guarded by mutex_
  std::thread thread_;
};

}  // namespace

void RunThreads(int ranks, const std::function<void(Transport&)>& body,
                const ThreadOptions& options) {
  Hub hub(ranks, options);
  auto run = [&](int rank) {
    ThreadTransport transport(hub, rank);
    try {
      WithFaults(transport, body);
      transport.status().SetState(RankState::kFinished);
    } catch (...) {
      hub.Fail(std::current_exception());
    }
  };
  Monitor monitor(hub);
  std::vector<std::thread> threads;
  for (int rank = 1; rank < ranks; ++rank) threads.emplace_back(run, rank);
  run(0);
  for (std::thread& thread : threads) thread.join();
  if (hub.error) std::rethrow_exception(hub.error);
}

}  // namespace pipewright
