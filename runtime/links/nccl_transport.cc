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
#include "base/text.h"
#include "runtime/module/messages.h"
#include "runtime/nccl/nccl_library.h"
#include "tensors/device_memory.h"

namespace pipewright {

namespace {

struct Link;

// Another rank of a sum, on its first rank.
struct Other {
  int rank = -1;
  Bundle flags;
  Token token;  // of the flags; once the sum has been launched here, of the word that it has there
};

// A message, or a sum.
struct Transfer : Completion {
  Link* link = nullptr;  // null: all of it lies in host memory
  int tag = 0;
  Token inner;                // of the regions in host memory; null on the first rank of a sum
  Bundle host;                // these regions, on the first rank of a sum
  std::vector<Other> others;  // on the first rank of a sum, until all have launched it
  Bundle bundle;              // kept until the transfer has ended
  std::optional<c10::Event> ready;  // after what was launched before the transfer was posted
  std::optional<c10::Event> moved;  // after the transfer, once it has been launched
};

// A rank launches the transfer with this tag as its next.
struct Announcement {
  std::shared_ptr<int32_t> tag = std::make_shared<int32_t>();
  Token token;
};

// Names a communicator by its ranks, in its own order: a sender and a receiver, or those that add.
// The first one says what is launched next.
struct LinkName {
  bool adds = false;
  std::vector<int> ranks;

  auto operator<=>(const LinkName&) const = default;
  // Returns the place of a rank in the communicator, or -1.
  int PlaceOf(int rank) const {
    const auto found = std::find(ranks.begin(), ranks.end(), rank);
    return found == ranks.end() ? -1 : static_cast<int>(found - ranks.begin());
  }
  std::string Text() const {
    std::vector<std::string> texts;
    for (int rank : ranks) texts.push_back(std::to_string(rank));
    return adds ? "the sum over ranks " + Join(texts, ", ")
                : "the link from rank " + texts[0] + " to rank " + texts[1];
  }
};

// A communicator on one of its ranks, with the stream of its transfers.
struct Link {
  LinkName name;
  int place = -1;  // of this rank
  void* comm = nullptr;
  c10::Stream stream;
  std::deque<std::shared_ptr<Transfer>> waiting;     // posted, and not launched
  std::deque<std::shared_ptr<Transfer>> confirming;  // sums that another rank has yet to launch

  bool leads() const { return place == 0; }
  bool sends() const { return leads() && !name.adds; }
};

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

struct NumberFormat {
  int nccl = 0;
  size_t bytes = 0;
};

NumberFormat FormatOf(NumberType type) {
  switch (type) {
    case NumberType::kFloat16:
      return {kNcclFloat16, 2};
    case NumberType::kBFloat16:
      return {kNcclBfloat16, 2};
    case NumberType::kFloat32:
      return {kNcclFloat32, 4};
    case NumberType::kFloat64:
      return {kNcclFloat64, 8};
    case NumberType::kNone:
      break;
  }
  throw Error("NCCL", "only floating-point numbers can be added");
}

// Copies flags to memory of their own.
Bundle CopyOf(const Bundle& flags) {
  auto bytes = std::make_shared<std::vector<char>>();
  for (const Region& region : flags.regions)
    bytes->insert(bytes->end(), static_cast<char*>(region.data),
                  static_cast<char*>(region.data) + region.bytes);
  Bundle copy{{}, bytes};
  char* at = bytes->data();
  for (const Region& region : flags.regions) {
    copy.regions.push_back({at, region.bytes});
    at += region.bytes;
  }
  return copy;
}

void SetFlags(const Bundle& into, const Bundle& from) {
  for (size_t r = 0; r < into.regions.size(); ++r)
    for (size_t i = 0; i < into.regions[r].bytes; ++i)
      static_cast<char*>(into.regions[r].data)[i] |= static_cast<char*>(from.regions[r].data)[i];
}

}  // namespace

struct NcclTransport::State {
  State(Transport& inner_transport, c10::Device rank_device, const DevicePeers& all_peers)
      : inner(inner_transport), device(rank_device), guard(rank_device.type()), peers(all_peers) {
    const std::map<LinkName, NcclId> ids = MakeIds();
    // All ranks go through the links in the same order, so that none waits for another in a circle.
    std::vector<LinkName> mine;
    for (const auto& [name, id] : ids)
      if (name.PlaceOf(inner.rank()) >= 0) mine.push_back(name);
    int done = 0;
    auto progress = [&] {  // NCCL waits for the other rank in its own way
      inner.status().WaitFor({.kind = Awaited::kDevice, .microbatch = done++});
    };
    try {
      for (const LinkName& name : mine) progress(), At(name, [&] { Open(name, ids.at(name)); });
      for (const LinkName& name : mine) progress(), At(name, [&] { Use(name, done); });
    } catch (...) {
      Abort();
      AwaitAborts();
      throw;
    }
    inner.status().WaitFor({});
    monitor = std::thread([this] { Monitor(); });
  }

  // The first rank of each link makes its id.
  std::map<LinkName, NcclId> MakeIds() {
    std::vector<LinkName> names;
    for (const auto& [from, to] : peers.pairs) names.push_back({false, {from, to}});
    for (const std::vector<int>& ranks : peers.sums) names.push_back({true, ranks});
    std::string mine;
    for (const LinkName& name : names) {
      if (name.ranks[0] != inner.rank()) continue;
      NcclId id;
      CheckNccl(Nccl().GetUniqueId(&id), "ncclGetUniqueId", nullptr);
      mine.append(id.bytes, sizeof id.bytes);
    }
    const std::vector<std::string> all = inner.AllGather(mine);
    std::map<LinkName, NcclId> ids;
    std::map<int, size_t> taken;  // by rank
    for (const LinkName& name : names) {
      const std::string& of_rank = all[static_cast<size_t>(name.ranks[0])];
      std::memcpy(ids[name].bytes, of_rank.data() + taken[name.ranks[0]], sizeof(NcclId));
      taken[name.ranks[0]] += sizeof(NcclId);
    }
    return ids;
  }

  // Says in an error of `begin` where it is, and what may help when NCCL starts.
  template <class F>
  void At(const LinkName& name, F begin) const {
    try {
      begin();
    } catch (const Aborted&) {
      throw;
    } catch (const std::exception& e) {
      throw Error(
          "rank " + std::to_string(inner.rank()) + " on " + device.str() + ", " + name.Text(),
          e.what(),
          "if this is a container, give it more shared memory (/dev/shm); if the hosts have "
          "several networks, name one (NCCL_SOCKET_IFNAME); or send values through host "
          "memory (--links mpi)");
    }
  }

  void Open(const LinkName& name, const NcclId& id) {
    Link link{name, name.PlaceOf(inner.rank()), nullptr, guard.getNewStream(device), {}, {}};
    NcclConfig config;
    // One sends and one receives, so a few blocks suffice; the others are left to computations.
    // Sums wait for each other's ranks, and must all fit on the GPU.
    config.max_ctas = name.adds ? 16 : 4;
    CheckNccl(Nccl().CommInitRankConfig(&link.comm, static_cast<int>(name.ranks.size()), id,
                                        link.place, &config),
              "ncclCommInitRankConfig", nullptr);
    links.emplace(name, std::move(link));
  }

  void Use(const LinkName& name, int number) {
    const Bundle bundle = MakeBundle({EmptyOn(device, {1}, at::kFloat)});
    Link& link = links.at(name);
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
    CheckNccl(Nccl().GroupStart(), "ncclGroupStart", link.comm);
    int result = kNcclSuccess;
    for (const Region& region : bundle.regions)
      if (region.bytes > 0 && result == kNcclSuccess) result = Launch(link, region);
    const int ended = Nccl().GroupEnd();  // also after an error, since groups are nested
    CheckNccl(result,
              link.name.adds ? "ncclAllReduce"
              : link.sends() ? "ncclSend"
                             : "ncclRecv",
              link.comm);
    CheckNccl(ended, "ncclGroupEnd", link.comm);
    c10::Event done(device.type());
    done.record(link.stream);
    return done;
  }

  static int Launch(const Link& link, const Region& region) {
    const NcclFunctions& nccl = Nccl();
    void* const stream = link.stream.native_handle();
    if (link.name.adds) {
      const NumberFormat format = FormatOf(region.type);
      return nccl.AllReduce(region.data, region.data, region.bytes / format.bytes, format.nccl,
                            kNcclSum, link.comm, stream);
    }
    return link.sends() ? nccl.Send(region.data, region.bytes, kNcclUint8, 1, link.comm, stream)
                        : nccl.Recv(region.data, region.bytes, kNcclUint8, 0, link.comm, stream);
  }

  c10::Stream Current() const { return guard.getStream(device); }

  std::shared_ptr<Transfer> Post(const LinkName& name, int tag, const Bundle& bundle) {
    auto transfer = std::make_shared<Transfer>();
    transfer->tag = tag;
    const int first = name.ranks[0];
    Bundle part = PartOf(bundle, true);
    if (name.adds)
      for (const Region& region : part.regions) FormatOf(region.type);  // throws if it has none
    if (name.adds && part.regions.empty()) throw Error("NCCL", "a sum has no values on a device");
    if (!part.regions.empty()) {
      Link& link = links.at(name);
      transfer->link = &link;
      transfer->bundle = std::move(part);
      transfer->ready.emplace(device.type());
      transfer->ready->record(Current());
      link.waiting.push_back(transfer);
    }
    part = PartOf(bundle, false);
    if (name.adds)
      PostFlags(*transfer, name, std::move(part));
    else
      transfer->inner = first == inner.rank() ? inner.Send(name.ranks[1], tag, std::move(part))
                                              : inner.Recv(first, tag, std::move(part));
    if (transfer->link && first != inner.rank()) {
      Announcement announcement;
      announcement.token = inner.Recv(
          first, LinkTag(), {{{announcement.tag.get(), sizeof(int32_t)}}, announcement.tag});
      announced[first].push_back(std::move(announcement));
    }
    return transfer;
  }

  // The first rank gets the flags of the others, and later sends back those of all.
  void PostFlags(Transfer& transfer, const LinkName& name, Bundle own) {
    const int first = name.ranks[0];
    if (first != inner.rank()) {
      inner.Send(first, transfer.tag, CopyOf(own));
      transfer.inner = inner.Recv(first, transfer.tag, std::move(own));
      return;
    }
    for (size_t i = 1; i < name.ranks.size(); ++i) {
      Other other{name.ranks[i], CopyOf(own), nullptr};
      other.token = inner.Recv(other.rank, transfer.tag, other.flags);
      transfer.others.push_back(std::move(other));
    }
    transfer.host = std::move(own);
  }

  int LinkTag() const { return inner.max_tag() - kLinkTag; }

  void Launch(const std::shared_ptr<Transfer>& transfer) {
    transfer->ready->block(transfer->link->stream);
    transfer->moved = Launch(*transfer->link, transfer->bundle);
    in_flight.push_back(transfer);
  }

  // Launches what can be. Never waits.
  void Advance() {
    for (auto& [name, link] : links)
      if (link.leads()) Lead(link);
    for (auto& [first, queue] : announced)
      while (!queue.empty() && inner.Test(queue.front().token)) {
        const int tag = *queue.front().tag;
        queue.pop_front();
        const std::shared_ptr<Transfer> transfer = Announced(first, tag);
        Launch(transfer);
        if (transfer->link->name.adds) inner.Send(first, tag, PartOf({}, false));
      }
  }

  // Returns the rank whose part of the transfer is missing, or -1.
  int Missing(const Transfer& transfer) {
    for (const Other& other : transfer.others)
      if (!inner.Test(other.token)) return other.rank;
    return -1;
  }

  // Launches what the other ranks have posted, too.
  void Lead(Link& link) {
    std::set<int> unready;  // transfers with one tag keep their order
    for (auto at = link.waiting.begin(); at != link.waiting.end();) {
      const std::shared_ptr<Transfer> transfer = *at;
      if (unready.count(transfer->tag) ||
          (link.name.adds ? Missing(*transfer) >= 0 : !inner.Test(transfer->inner))) {
        unready.insert(transfer->tag);
        ++at;
        continue;
      }
      Launch(transfer);
      for (size_t i = 1; i < link.name.ranks.size(); ++i) {
        auto tag = std::make_shared<int32_t>(transfer->tag);
        inner.Send(link.name.ranks[i], LinkTag(), {{{tag.get(), sizeof(int32_t)}}, tag});
      }
      for (Other& other : transfer->others) {
        SetFlags(transfer->host, other.flags);
        other.token = inner.Recv(other.rank, transfer->tag, PartOf({}, false));
      }
      if (link.name.adds) link.confirming.push_back(transfer);
      at = link.waiting.erase(at);
    }
    Confirm(link);
  }

  // Ends the sums that all ranks have launched. If they ended earlier, a host that then waits for
  // its device might keep it from launching a sum that the device of another rank waits for.
  void Confirm(Link& link) {
    std::erase_if(link.confirming, [&](const std::shared_ptr<Transfer>& sum) {
      if (Missing(*sum) >= 0) return false;
      for (const Other& other : sum->others) inner.Send(other.rank, sum->tag, CopyOf(sum->host));
      sum->others.clear();
      sum->host = {};
      return true;
    });
  }

  // Returns what rank `first` has launched, and removes it from those that wait.
  std::shared_ptr<Transfer> Announced(int first, int tag) {
    for (auto& [name, link] : links) {
      if (name.ranks[0] != first) continue;
      const auto found = std::find_if(link.waiting.begin(), link.waiting.end(),
                                      [&](const auto& one) { return one->tag == tag; });
      if (found == link.waiting.end()) continue;
      const std::shared_ptr<Transfer> transfer = *found;
      link.waiting.erase(found);
      return transfer;
    }
    throw Error("NCCL", "rank " + std::to_string(first) +
                            " announces a transfer that this rank does not expect");
  }

  // Returns true if the transfer has been launched, a sum on all its ranks, and the host has its
  // part.
  bool Begun(const Transfer& transfer) {
    return (!transfer.inner || inner.Test(transfer.inner)) && transfer.others.empty() &&
           (!transfer.link || transfer.moved);
  }

  // Orders whatever is launched from now on after a receive or a sum. Nothing must wait for a send:
  // the other rank's host may have to go on before it launches the receive.
  void Finish(Transfer& transfer) {
    if (!transfer.moved || transfer.link->sends()) return;
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
      for (auto& [name, link] : links)
        if (failure.empty()) failure = FailureOf(name.Text(), link);
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
    for (auto& [name, link] : links) {
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
    for (auto& [name, link] : links) Nccl().CommDestroy(link.comm);
    in_flight.clear();
  }

  bool Waits() const {
    return std::any_of(links.begin(), links.end(), [](const auto& link) {
      return !link.second.waiting.empty() || !link.second.confirming.empty();
    });
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
  const DevicePeers peers;
  std::map<LinkName, Link> links;                     // of this rank
  std::map<int, std::deque<Announcement>> announced;  // by first rank: one for each that waits
  std::deque<std::shared_ptr<Transfer>> in_flight;    // launched; their memory is in use
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

NcclTransport::NcclTransport(Transport& inner, c10::Device device, const DevicePeers& peers)
    : WrappedTransport(inner), state_(std::make_unique<State>(inner, device, peers)) {}

NcclTransport::~NcclTransport() { state_->Close(std::uncaught_exceptions() > state_->exceptions); }

void NcclTransport::SetActive(bool active) { state_->active = active; }
const DevicePeers& NcclTransport::peers() const { return state_->peers; }

void NcclTransport::LaunchAll() {
  state_->CheckLinks();
  if (state_->Waits()) status().WaitFor({Awaited::kEveryRank});
  for (int round = 0; state_->Waits(); ++round) state_->Poll(round);
  status().WaitFor({});
}

bool NcclTransport::TakesDevices(int peer) const {
  const RankPairs& pairs = state_->peers.pairs;
  return state_->active && (pairs.count({rank(), peer}) > 0 || pairs.count({peer, rank()}) > 0);
}

Token NcclTransport::Send(int peer, int tag, Bundle bundle) {
  state_->Release();
  return state_->Post({false, {rank(), peer}}, tag, bundle);
}

Token NcclTransport::Recv(int peer, int tag, Bundle bundle) {
  return state_->Post({false, {peer, rank()}}, tag, bundle);
}

Token NcclTransport::AllReduce(const std::vector<int>& ranks, int tag, Bundle bundle) {
  return state_->Post({true, ranks}, tag, bundle);
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
  for (int round = 0; !state_->Begun(transfer); ++round) {
    if (const int missing = state_->Missing(transfer); missing >= 0)
      status().WaitFor({Awaited::kSharedWeight, missing});
    state_->Poll(round);
  }
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
