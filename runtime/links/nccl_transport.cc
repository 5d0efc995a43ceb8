#include "runtime/links/nccl_transport.h"

#include <c10/core/Event.h>
#include <c10/core/Stream.h>
#include <c10/core/impl/VirtualGuardImpl.h>

#include <algorithm>
#include <chrono>
#include <condition_variable>
#include <cstring>
#include <deque>
#include <exception>
#include <map>
#include <mutex>
#include <optional>
#include <set>
#include <thread>
#include <utility>

#include "base/error.h"
#include "runtime/module/messages.h"
#include "runtime/nccl/nccl_library.h"
#include "tensors/device_memory.h"

namespace pipewright {

namespace {

struct Link;

struct Transfer : Completion {
  Link* link = nullptr;  // null: all of it lies in host memory
  int tag = 0;
  Token inner;                      // of the regions in host memory
  Bundle bundle;                    // kept until the transfer has ended
  std::optional<c10::Event> ready;  // after what was launched before the transfer was posted
  std::optional<c10::Event> moved;  // after the transfer, once it has been launched
};

// The sender launches the transfer with this tag as the next of the pair.
struct Announcement {
  std::shared_ptr<int32_t> tag = std::make_shared<int32_t>();
  Token token;
};

// The communicator of one pair, on one of its sides, with the stream of its transfers.
struct Link {
  int peer = -1;
  bool sends = false;
  void* comm = nullptr;
  c10::Stream stream;
  std::deque<std::shared_ptr<Transfer>> waiting;  // posted, and not launched
  std::deque<Announcement> announced;             // on the receiver: one for each that waits
};

std::string LinkText(const std::pair<int, int>& pair) {
  return "the link from rank " + std::to_string(pair.first) + " to rank " +
         std::to_string(pair.second);
}

// Threads that abort communicators, and that outlive the transport if NCCL takes its time.
struct Aborts {
  std::mutex mutex;
  std::condition_variable ended;
  int running = 0;
};

// An abort waits for a launch that is under way, but no longer than this.
constexpr std::chrono::seconds kLaunchLimit(3);

// An error is shown after so long at the latest, even if NCCL waits for a device.
constexpr std::chrono::seconds kAbortLimit(2);

// The host's part is never empty, because its send tells when the receive has been posted.
Bundle PartOf(const Bundle& bundle, bool on_device) {
  static char byte = 0;
  Bundle part;
  for (const Region& region : bundle.regions)
    if (region.on_device == on_device) part.regions.push_back(region);
  if (part.regions.empty() && !on_device) part.regions.push_back({&byte, 1});
  part.owner = bundle.owner;
  return part;
}

}  // namespace

struct NcclTransport::State {
  State(Transport& inner_transport, c10::Device rank_device, const RankPairs& all_pairs)
      : inner(inner_transport), device(rank_device), guard(rank_device.type()), pairs(all_pairs) {
    const std::map<std::pair<int, int>, NcclId> ids = MakeIds();
    // All ranks go through the pairs in the same order, so that none waits for another in a circle.
    RankPairs mine;
    for (const auto& pair : pairs)
      if (pair.first == inner.rank() || pair.second == inner.rank()) mine.insert(pair);
    int done = 0;
    auto progress = [&] {  // NCCL waits for the other rank in its own way
      inner.status().WaitFor({.kind = Awaited::kDevice, .microbatch = done++});
    };
    try {
      for (const auto& pair : mine) progress(), At(pair, [&] { Open(pair, ids.at(pair)); });
      for (const auto& pair : mine) progress(), At(pair, [&] { Use(pair, done); });
    } catch (...) {
      Abort();
      AwaitAborts();
      throw;
    }
    inner.status().WaitFor({});
    monitor = std::thread([this] { Monitor(); });
  }

  // The sender of each pair makes its id.
  std::map<std::pair<int, int>, NcclId> MakeIds() {
    std::string mine;
    for (const auto& [from, to] : pairs) {
      if (from != inner.rank()) continue;
      NcclId id;
      CheckNccl(Nccl().GetUniqueId(&id), "ncclGetUniqueId", nullptr);
      mine.append(id.bytes, sizeof id.bytes);
    }
    const std::vector<std::string> all = inner.AllGather(mine);
    std::map<std::pair<int, int>, NcclId> ids;
    std::map<int, size_t> taken;  // by sender
    for (const auto& pair : pairs) {
      const std::string& of_sender = all[static_cast<size_t>(pair.first)];
      std::memcpy(ids[pair].bytes, of_sender.data() + taken[pair.first], sizeof(NcclId));
      taken[pair.first] += sizeof(NcclId);
    }
    return ids;
  }

  // Says in an error of `begin` where it is, and what may help when NCCL starts.
  template <class F>
  void At(const std::pair<int, int>& pair, F begin) const {
    try {
      begin();
    } catch (const Aborted&) {
      throw;
    } catch (const std::exception& e) {
      throw Error(
          "rank " + std::to_string(inner.rank()) + " on " + device.str() + ", " + LinkText(pair),
          e.what(),
          "if this is a container, give it more shared memory (/dev/shm); if the hosts have "
          "several networks, name one (NCCL_SOCKET_IFNAME); or send values through host "
          "memory (--links mpi)");
    }
  }

  void Open(const std::pair<int, int>& pair, const NcclId& id) {
    const bool sends = pair.first == inner.rank();
    Link link{sends ? pair.second : pair.first, sends, nullptr, guard.getNewStream(device), {}, {}};
    NcclConfig config;
    // One sends and one receives, so a few blocks suffice; the others are left to computations.
    config.max_ctas = 4;
    CheckNccl(Nccl().CommInitRankConfig(&link.comm, 2, id, sends ? 0 : 1, &config),
              "ncclCommInitRankConfig", nullptr);
    links.emplace(pair, std::move(link));
  }

  void Use(const std::pair<int, int>& pair, int number) {
    const Bundle bundle = MakeBundle({EmptyOn(device, {1}, at::kByte)});
    Link& link = links.at(pair);
    After(Current(), link.stream);
    const c10::Event done = Launch(link, bundle);
    inner.WaitUntil([&]() -> Awaited {
      if (const std::string failed = FailureOf("its first use", link); !failed.empty())
        throw Error(failed);
      return done.query() ? Awaited{} : Awaited{.kind = Awaited::kDevice, .microbatch = number};
    });
  }

  // Makes `second` wait for everything that has been launched on `first`.
  c10::Event After(const c10::Stream& first, const c10::Stream& second) {
    c10::Event event(device.type());
    event.record(first);
    event.block(second);
    return event;
  }

  // Launches the transfer of all regions as one group. Returns an event after it.
  c10::Event Launch(Link& link, const Bundle& bundle) {
    std::lock_guard lock(launching);
    CheckLinks();
    void* const stream = link.stream.native_handle();
    const NcclFunctions& nccl = Nccl();
    const int peer = link.sends ? 1 : 0;
    CheckNccl(nccl.GroupStart(), "ncclGroupStart", link.comm);
    int result = kNcclSuccess;
    for (const Region& region : bundle.regions) {
      if (region.bytes == 0 || result != kNcclSuccess) continue;
      result = link.sends
                   ? nccl.Send(region.data, region.bytes, kNcclUint8, peer, link.comm, stream)
                   : nccl.Recv(region.data, region.bytes, kNcclUint8, peer, link.comm, stream);
    }
    const int ended = nccl.GroupEnd();  // also after an error, since groups are nested
    CheckNccl(result, link.sends ? "ncclSend" : "ncclRecv", link.comm);
    CheckNccl(ended, "ncclGroupEnd", link.comm);
    c10::Event done(device.type());
    done.record(link.stream);
    return done;
  }

  c10::Stream Current() const { return guard.getStream(device); }

  std::shared_ptr<Transfer> Post(const std::pair<int, int>& pair, int tag, const Bundle& bundle) {
    auto transfer = std::make_shared<Transfer>();
    transfer->tag = tag;
    const bool sends = pair.first == inner.rank();
    Bundle part = PartOf(bundle, true);
    if (!part.regions.empty()) {
      Link& link = links.at(pair);
      transfer->link = &link;
      transfer->bundle = std::move(part);
      transfer->ready.emplace(device.type());
      transfer->ready->record(Current());
      link.waiting.push_back(transfer);
    }
    part = PartOf(bundle, false);
    transfer->inner = sends ? inner.Send(pair.second, tag, std::move(part))
                            : inner.Recv(pair.first, tag, std::move(part));
    if (transfer->link && !sends) {
      Announcement announcement;
      announcement.token = inner.Recv(
          pair.first, LinkTag(), {{{announcement.tag.get(), sizeof(int32_t)}}, announcement.tag});
      transfer->link->announced.push_back(std::move(announcement));
    }
    return transfer;
  }

  int LinkTag() const { return inner.max_tag() - kLinkTag; }

  void Launch(const std::shared_ptr<Transfer>& transfer) {
    transfer->ready->block(transfer->link->stream);
    transfer->moved = Launch(*transfer->link, transfer->bundle);
    in_flight.push_back(transfer);
  }

  // Launches what can be. Never waits.
  void Advance() {
    for (auto& [pair, link] : links)
      if (!link.waiting.empty()) link.sends ? AdvanceSends(link) : AdvanceReceives(link);
  }

  void AdvanceSends(Link& link) {
    std::set<int> unready;  // transfers with one tag keep their order
    for (auto at = link.waiting.begin(); at != link.waiting.end();) {
      const std::shared_ptr<Transfer> transfer = *at;
      if (unready.count(transfer->tag) || !inner.Test(transfer->inner)) {
        unready.insert(transfer->tag);
        ++at;
        continue;
      }
      Launch(transfer);
      auto tag = std::make_shared<int32_t>(transfer->tag);
      inner.Send(link.peer, LinkTag(), {{{tag.get(), sizeof(int32_t)}}, tag});
      at = link.waiting.erase(at);
    }
  }

  void AdvanceReceives(Link& link) {
    while (!link.announced.empty() && inner.Test(link.announced.front().token)) {
      const int tag = *link.announced.front().tag;
      link.announced.pop_front();
      const auto transfer = std::find_if(link.waiting.begin(), link.waiting.end(),
                                         [&](const auto& one) { return one->tag == tag; });
      if (transfer == link.waiting.end())
        throw Error("NCCL", "rank " + std::to_string(link.peer) +
                                " announces a transfer that this rank does not expect");
      Launch(*transfer);
      link.waiting.erase(transfer);
    }
  }

  // Returns true if the transfer has been launched and the host has its part of it.
  bool Begun(const Transfer& transfer) {
    return inner.Test(transfer.inner) && (!transfer.link || transfer.moved);
  }

  // Orders whatever is launched from now on after a receive. Nothing must wait for a send: the
  // other rank's host may have to go on before it launches the receive.
  void Finish(Transfer& transfer) {
    if (!transfer.moved || transfer.link->sends) return;
    transfer.moved->block(Current());
    transfer.bundle = {};
    std::erase_if(in_flight, [&](const auto& one) { return one.get() == &transfer; });
  }

  // Releases the memory of transfers that have ended.
  void Release() {
    std::erase_if(in_flight, [](const auto& one) {
      if (!one->moved->query()) return false;
      one->bundle = {};
      return true;
    });
  }

  // Runs in a thread of its own until Close, because the rank's thread may be waiting for its
  // device, which waits for a transfer that cannot end. Aborts all communicators if NCCL has
  // noticed a failure, so that the device goes on.
  void Monitor() {
    std::unique_lock lock(mutex);
    while (!monitor_wakes.wait_for(lock, std::chrono::milliseconds(100), [&] { return closing; })) {
      for (auto& [pair, link] : links)
        if (failure.empty()) failure = FailureOf(LinkText(pair), link);
      if (failure.empty()) continue;
      lock.unlock();
      // An abort frees the communicator, so no launch should be under way. One that lasts this long
      // is stuck, and an abort is what ends it.
      std::unique_lock launches(launching, kLaunchLimit);
      return Abort();
    }
  }

  // Returns what NCCL has noticed of a communicator; `place` is for the text.
  static std::string FailureOf(const std::string& place, const Link& link) {
    try {
      int result = kNcclSuccess;
      CheckNccl(Nccl().CommGetAsyncError(link.comm, &result), "ncclCommGetAsyncError", link.comm);
      if (result != kNcclInProgress) CheckNccl(result, place.c_str(), link.comm);
    } catch (const Error& e) {
      return e.what();
    }
    return "";
  }

  // Begins to abort all communicators at once: each waits for the device, and so for the transfers
  // of the others. NCCL allows it while the rank's thread is in a call.
  void Abort() {
    for (auto& [pair, link] : links) {
      void* const comm = std::exchange(link.comm, nullptr);
      if (!comm) continue;
      std::unique_lock lock(aborts->mutex);
      ++aborts->running;
      lock.unlock();
      std::thread([comm, all = aborts] {
        Nccl().CommAbort(comm);
        std::lock_guard done(all->mutex);
        --all->running;
        all->ended.notify_all();
      }).detach();
    }
  }

  // Waits for the aborts, but not for long: the process may be about to show an error and to end.
  // Keeps the memory of transfers that may still run.
  void AwaitAborts() {
    std::unique_lock lock(aborts->mutex);
    if (!aborts->ended.wait_for(lock, kAbortLimit, [&] { return aborts->running == 0; }))
      new std::deque<std::shared_ptr<Transfer>>(std::move(in_flight));
  }

  // Throws Error if NCCL has noticed a failure.
  void CheckLinks() {
    std::lock_guard lock(mutex);
    if (!failure.empty()) throw Error(failure);
  }

  // Ends the communicators; those of failed or abandoned transfers would never end by themselves.
  void Close(bool abandon) {
    auto moves = [](const auto& link) { return !link.second.stream.query(); };
    try {
      if (!abandon) inner.status().WaitFor({Awaited::kEveryRank});
      for (int round = 0; !abandon && Waits(); ++round) Poll(round);
      for (int round = 0; !abandon && std::any_of(links.begin(), links.end(), moves); ++round)
        Poll(round);
    } catch (const std::exception&) {  // the device, another rank or NCCL has failed
      abandon = true;
    }
    {
      std::lock_guard lock(mutex);
      closing = true;
    }
    monitor_wakes.notify_one();
    monitor.join();
    if (abandon || !failure.empty()) {
      Abort();
      return AwaitAborts();
    }
    for (auto& [pair, link] : links) Nccl().CommDestroy(link.comm);
    in_flight.clear();
  }

  bool Waits() const {
    return std::any_of(links.begin(), links.end(),
                       [](const auto& link) { return !link.second.waiting.empty(); });
  }

  // Makes progress, and lets other threads run: the longer it has been called in a row, the longer.
  // Throws Error if another rank or NCCL has failed.
  void Poll(int round) {
    CheckLinks();
    inner.Pending();
    Advance();
    if (round < 100)
      std::this_thread::yield();
    else
      std::this_thread::sleep_for(std::chrono::microseconds(20));
  }

  Transport& inner;
  const c10::Device device;
  const c10::impl::VirtualGuardImpl guard;
  const RankPairs pairs;
  std::map<std::pair<int, int>, Link> links;  // of this rank
  std::deque<std::shared_ptr<Transfer>> in_flight;  // launched; their memory is in use
  bool active = true;
  std::timed_mutex launching;  // held during a launch; taken before `mutex`
  std::mutex mutex;  // guards what follows, and the communicators once the monitor has begun
  std::condition_variable monitor_wakes;
  bool closing = false;
  std::string failure;
  const std::shared_ptr<Aborts> aborts = std::make_shared<Aborts>();
  std::thread monitor;  // begins when the communicators have been used
  const int exceptions = std::uncaught_exceptions();
};

NcclTransport::NcclTransport(Transport& inner, c10::Device device, const RankPairs& pairs)
    : WrappedTransport(inner), state_(std::make_unique<State>(inner, device, pairs)) {}

NcclTransport::~NcclTransport() { state_->Close(std::uncaught_exceptions() > state_->exceptions); }

void NcclTransport::SetActive(bool active) { state_->active = active; }
const RankPairs& NcclTransport::pairs() const { return state_->pairs; }

void NcclTransport::LaunchAll() {
  state_->CheckLinks();
  if (state_->Waits()) status().WaitFor({Awaited::kEveryRank});
  for (int round = 0; state_->Waits(); ++round) state_->Poll(round);
  status().WaitFor({});
}

bool NcclTransport::TakesDevices(int peer) const {
  const auto& links = state_->links;
  return state_->active && (links.count({rank(), peer}) > 0 || links.count({peer, rank()}) > 0);
}

Token NcclTransport::Send(int peer, int tag, Bundle bundle) {
  state_->Release();
  return state_->Post({rank(), peer}, tag, bundle);
}

Token NcclTransport::Recv(int peer, int tag, Bundle bundle) {
  return state_->Post({peer, rank()}, tag, bundle);
}

bool NcclTransport::Test(const Token& token) {
  auto& transfer = static_cast<Transfer&>(*token);
  state_->Advance();
  if (!state_->Begun(transfer)) return false;
  state_->Finish(transfer);
  return true;
}

void NcclTransport::ComeAfter(const Token& send) {
  const auto& transfer = static_cast<const Transfer&>(*send);
  if (transfer.moved) transfer.moved->block(state_->Current());
}

bool NcclTransport::HasLeft(const Token& send) {
  const auto& transfer = static_cast<const Transfer&>(*send);
  return !transfer.moved || transfer.moved->query();
}

void NcclTransport::Wait(const Token& token) {
  auto& transfer = static_cast<Transfer&>(*token);
  for (int round = 0; !state_->Begun(transfer); ++round) state_->Poll(round);
  state_->Finish(transfer);
}

size_t NcclTransport::Pending() {
  state_->CheckLinks();
  state_->Advance();
  state_->Release();
  return state_->in_flight.size() + WrappedTransport::Pending();
}

void NcclTransport::BeginAction(int64_t step, int entry) {
  WrappedTransport::BeginAction(step, entry);
  state_->Advance();
}

std::vector<std::string> NcclTransport::AllGather(const std::string& bytes) {
  LaunchAll();
  return WrappedTransport::AllGather(bytes);
}

}  // namespace pipewright
