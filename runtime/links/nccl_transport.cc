#include "runtime/links/nccl_transport.h"

#include <c10/core/Event.h>
#include <c10/core/Stream.h>
#include <c10/core/impl/VirtualGuardImpl.h>

#include <cstdlib>
#include <cstring>
#include <deque>
#include <exception>
#include <map>
#include <optional>

#include "base/error.h"
#include "runtime/nccl/nccl_library.h"

namespace pipewright {

namespace {

// The communicator of one pair, on one of its sides, with the stream of its transfers.
struct Link {
  int peer = -1;
  bool sends = false;
  void* comm = nullptr;
  c10::Stream stream;
};

struct LinkToken : Completion {
  Token inner;                      // of the regions in host memory
  std::optional<c10::Event> moved;  // of the others, if there are any
  bool sends = false;
};

struct InFlight {
  Bundle bundle;
  std::shared_ptr<LinkToken> token;
};

Bundle PartOf(const Bundle& bundle, bool on_device) {
  Bundle part;
  for (const Region& region : bundle.regions)
    if (region.on_device == on_device) part.regions.push_back(region);
  part.owner = bundle.owner;
  return part;
}

}  // namespace

struct NcclTransport::State {
  State(Transport& inner_transport, c10::Device rank_device, const NcclPairs& pairs)
      : inner(inner_transport), device(rank_device), guard(rank_device.type()) {
    const std::map<std::pair<int, int>, NcclId> ids = MakeIds(pairs);
    // All ranks go through the pairs in the same order, so that none waits for another in a circle.
    NcclPairs mine;
    for (const auto& pair : pairs)
      if (pair.first == inner.rank() || pair.second == inner.rank()) mine.insert(pair);
    int done = 0;
    auto progress = [&] {  // NCCL waits for the other rank in its own way
      inner.status().WaitFor({.kind = Awaited::kDevice, .microbatch = done++});
    };
    for (const auto& pair : mine) progress(), Open(pair, ids.at(pair));
    for (const auto& pair : mine) progress(), Use(pair, done);
    inner.status().WaitFor({});
  }

  // The sender of each pair makes its id.
  std::map<std::pair<int, int>, NcclId> MakeIds(const NcclPairs& pairs) {
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

  void Open(const std::pair<int, int>& pair, const NcclId& id) {
    const bool sends = pair.first == inner.rank();
    Link link{sends ? pair.second : pair.first, sends, nullptr, guard.getNewStream(device)};
    NcclConfig config;
    // One sends and one receives, so a few blocks suffice; the others are left to computations.
    config.max_ctas = 4;
    CheckNccl(Nccl().CommInitRankConfig(&link.comm, 2, id, sends ? 0 : 1, &config),
              "ncclCommInitRankConfig", nullptr);
    links.emplace(pair, link);
  }

  void Use(const std::pair<int, int>& pair, int number) {
    const std::shared_ptr<void> byte = DeviceByte();
    Bundle bundle;
    bundle.regions.push_back({byte.get(), 1, true});
    const c10::Event done = Launch(links.at(pair), bundle);
    inner.WaitUntil([&]() -> Awaited {
      return done.query() ? Awaited{} : Awaited{.kind = Awaited::kDevice, .microbatch = number};
    });
  }

  std::shared_ptr<void> DeviceByte() {
    c10::DataPtr data = c10::GetAllocator(device.type())->allocate(1);
    void* address = data.get();
    return {address, [owner = std::make_shared<c10::DataPtr>(std::move(data))](void*) {}};
  }

  // Makes `second` wait for everything that has been launched on `first`.
  c10::Event After(const c10::Stream& first, const c10::Stream& second) {
    c10::Event event(device.type());
    event.record(first);
    event.block(second);
    return event;
  }

  // Launches the transfer of all regions as one group, after what the current stream has to do.
  c10::Event Launch(Link& link, const Bundle& bundle) {
    After(Current(), link.stream);
    void* const stream = link.stream.native_handle();
    const NcclFunctions& nccl = Nccl();
    CheckNccl(nccl.GroupStart(), "ncclGroupStart", link.comm);
    for (const Region& region : bundle.regions) {
      if (region.bytes == 0) continue;
      const int peer = link.sends ? 1 : 0;
      if (link.sends)
        CheckNccl(nccl.Send(region.data, region.bytes, kNcclUint8, peer, link.comm, stream),
                  "ncclSend", link.comm);
      else
        CheckNccl(nccl.Recv(region.data, region.bytes, kNcclUint8, peer, link.comm, stream),
                  "ncclRecv", link.comm);
    }
    CheckNccl(nccl.GroupEnd(), "ncclGroupEnd", link.comm);
    c10::Event done(device.type());
    done.record(link.stream);
    return done;
  }

  c10::Stream Current() const { return guard.getStream(device); }

  // Begins to move the regions on a device.
  std::shared_ptr<LinkToken> Move(const std::pair<int, int>& pair, const Bundle& bundle) {
    auto token = std::make_shared<LinkToken>();
    const Bundle part = PartOf(bundle, true);
    if (part.regions.empty()) return token;
    token->moved = Launch(links.at(pair), part);
    in_flight.push_back({bundle, token});
    return token;
  }

  // Orders whatever is launched from now on after the transfer, so its memory can be used again.
  void Finish(const LinkToken& transfer) {
    transfer.moved->block(Current());
    std::erase_if(in_flight, [&](const InFlight& one) { return one.token.get() == &transfer; });
  }

  // Releases the memory of transfers that have ended, in the order of the current stream.
  void Release() {
    std::erase_if(in_flight, [&](const InFlight& one) {
      if (!one.token->moved->query()) return false;
      one.token->moved->block(Current());
      return true;
    });
  }

  // Throws Error if NCCL has noticed a failure.
  void CheckLinks() {
    for (auto& [pair, link] : links) {
      int result = kNcclSuccess;
      CheckNccl(Nccl().CommGetAsyncError(link.comm, &result), "ncclCommGetAsyncError", link.comm);
      if (result == kNcclSuccess || result == kNcclInProgress) continue;
      failed = true;
      CheckNccl(result,
                ("the link from rank " + std::to_string(pair.first) + " to rank " +
                 std::to_string(pair.second))
                    .c_str(),
                link.comm);
    }
  }

  // Ends the communicators; those of failed or abandoned transfers would never end by themselves.
  void Close(bool abandon) {
    if (!abandon)
      for (auto& [pair, link] : links) link.stream.synchronize();
    for (auto& [pair, link] : links)
      abandon ? Nccl().CommAbort(link.comm) : Nccl().CommDestroy(link.comm);
    in_flight.clear();
  }

  Transport& inner;
  const c10::Device device;
  const c10::impl::VirtualGuardImpl guard;
  std::map<std::pair<int, int>, Link> links;  // of this rank
  std::deque<InFlight> in_flight;
  bool failed = false;
  const int exceptions = std::uncaught_exceptions();
};

NcclTransport::NcclTransport(Transport& inner, c10::Device device, const NcclPairs& pairs)
    : state_(std::make_unique<State>(inner, device, pairs)) {
  SetStatus(inner.status());
  SetHosts(inner.hosts());
}

NcclTransport::~NcclTransport() {
  try {
    state_->Close(state_->failed || std::uncaught_exceptions() > state_->exceptions);
  } catch (const std::exception&) {  // the device has failed
  }
}

int NcclTransport::rank() const { return state_->inner.rank(); }
int NcclTransport::size() const { return state_->inner.size(); }
int NcclTransport::max_tag() const { return state_->inner.max_tag(); }
std::shared_ptr<void> NcclTransport::Memory(size_t bytes) { return state_->inner.Memory(bytes); }

bool NcclTransport::TakesDevices(int peer) const {
  return state_->links.count({rank(), peer}) > 0 || state_->links.count({peer, rank()}) > 0;
}

Token NcclTransport::Send(int peer, int tag, Bundle bundle) {
  State& s = *state_;
  s.Release();
  const std::shared_ptr<LinkToken> token = s.Move({rank(), peer}, bundle);
  token->sends = true;
  token->inner = s.inner.Send(peer, tag, PartOf(bundle, false));
  return token;
}

Token NcclTransport::Recv(int peer, int tag, Bundle bundle) {
  State& s = *state_;
  const std::shared_ptr<LinkToken> token = s.Move({peer, rank()}, bundle);
  token->inner = s.inner.Recv(peer, tag, PartOf(bundle, false));
  return token;
}

// A receive is complete when the host has its part. A send is complete only when its memory may
// change, because what is launched next may change it.
bool NcclTransport::Test(const Token& token) {
  const auto& transfer = static_cast<const LinkToken&>(*token);
  if (!state_->inner.Test(transfer.inner)) return false;
  if (!transfer.moved) return true;
  if (transfer.sends && !transfer.moved->query()) return false;
  state_->Finish(transfer);
  return true;
}

void NcclTransport::Wait(const Token& token) {
  const auto& transfer = static_cast<const LinkToken&>(*token);
  state_->CheckLinks();
  WaitIn(state_->inner, transfer.inner);
  if (transfer.moved) state_->Finish(transfer);
}

void NcclTransport::BeginCompute() { state_->inner.BeginCompute(); }
void NcclTransport::Progress() { state_->inner.Progress(); }
bool NcclTransport::NeedsProgress() const { return state_->inner.NeedsProgress(); }

size_t NcclTransport::Pending() {
  state_->CheckLinks();
  return state_->inner.Pending();
}

void NcclTransport::BeginAction(int64_t step, int entry) { state_->inner.BeginAction(step, entry); }

std::vector<std::string> NcclTransport::AllGather(const std::string& bytes) {
  return state_->inner.AllGather(bytes);
}

void NcclTransport::Abort(const std::string& message, int exit_code) {
  Transport& inner = state_->inner;
  inner.Abort(message, exit_code);
  std::abort();
}

}  // namespace pipewright
