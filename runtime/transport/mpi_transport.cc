#include "runtime/transport/mpi_transport.h"

#include <mpi.h>
#include <sched.h>
#include <sys/prctl.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <climits>
#include <condition_variable>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <map>
#include <mutex>
#include <thread>
#include <utility>

#include "runtime/exec/message_size.h"
#include "runtime/transport/inbox.h"
#include "runtime/transport/mpi_abort.h"
#include "runtime/transport/mpi_requests.h"
#include "runtime/transport/spin_wait.h"

namespace pipewright {

namespace {

using Clock = std::chrono::steady_clock;
using std::chrono::microseconds;

// Polling intervals while the rank computes. Its own thread polls after kBetweenLooks, and after
// each fruitless poll twice as long, up to kMostBetweenLooks. The background thread steps in when
// no poll has happened for a while: it checks the clock each kUnseen for kRemembered after it was
// last needed, and then doubles its interval each time.
constexpr auto kBetweenLooks = microseconds(20), kMostBetweenLooks = microseconds(320),
               kUnseen = microseconds(3000), kMostBetweenChecks = microseconds(48000),
               kRemembered = microseconds(1000000);

void AllowShortSleeps() { prctl(PR_SET_TIMERSLACK, 1000); }  // nanoseconds

}  // namespace

// Returns true if the ranks of a host outnumber the cores that any of them may use.
static bool Crowded(MPI_Comm host) {
  cpu_set_t mine, all;
  CPU_ZERO(&mine);
  if (sched_getaffinity(0, sizeof mine, &mine) != 0) return false;  // more cores than a set holds
  MPI_Allreduce(&mine, &all, sizeof mine, MPI_BYTE, MPI_BOR, host);
  int ranks = 1;
  MPI_Comm_size(host, &ranks);
  return ranks > CPU_COUNT(&all);
}

// Open MPI spends 0.2 s of every start on looking for Omni-Path and libfabric devices. Skips that
// if there is no such device, unless the user has configured it explicitly.
static void SkipAbsentFabrics() {
  if (std::getenv("OMPI_MCA_mtl") || std::getenv("OMPI_MCA_pml")) return;
  std::error_code ignored;
  for (const char* devices : {"/sys/class/infiniband", "/sys/class/cxi"})
    if (std::filesystem::exists(devices, ignored) && !std::filesystem::is_empty(devices, ignored))
      return;
  for (const char* device : {"/dev/hfi1_0", "/dev/ipath", "/dev/kgni0"})
    if (std::filesystem::exists(device, ignored)) return;
  setenv("OMPI_MCA_mtl", "^psm,psm2,ofi", 0);
}

// Another rank of the host.
struct HostRank {
  int place = 0;                           // index among the senders to this rank's inbox
  std::unique_ptr<Outbox> outbox;          // null if its inbox cannot be mapped
  bool writes = false;                     // it has mapped this rank's inbox
  std::map<int, uint64_t> sent, received;  // count of messages that may use an inbox, by tag
};

struct MpiTransport::State {
  State(int* argc, char*** argv, const MpiOptions& options) {
    int initialized = 0, provided = 0;
    MPI_Initialized(&initialized);
    if (initialized) {
      MPI_Query_thread(&provided);
    } else {
      SkipAbsentFabrics();
      CheckMpi(MPI_Init_thread(argc, argv, MPI_THREAD_SERIALIZED, &provided), "MPI_Init_thread");
      finalize = true;
    }
    if (provided < MPI_THREAD_SERIALIZED)
      throw Error("MPI", "this MPI allows calls from one thread only",
                  "initialize it with MPI_THREAD_SERIALIZED, or use another build of it");
    MPI_Comm outer = options.communicator == MpiOptions::kWorld
                         ? MPI_COMM_WORLD
                         : MPI_Comm_f2c(options.communicator);
    CheckMpi(MPI_Comm_dup(outer, &comm), "MPI_Comm_dup");
    MPI_Comm_set_errhandler(comm, MPI_ERRORS_RETURN);
    MPI_Comm_rank(comm, &rank);
    MPI_Comm_size(comm, &size);
    int *tag = nullptr, found = 0;
    MPI_Comm_get_attr(comm, MPI_TAG_UB, &tag, &found);
    if (found) max_tag = *tag;
    MPI_Comm host;
    MPI_Comm_split_type(comm, MPI_COMM_TYPE_SHARED, rank, MPI_INFO_NULL, &host);
    crowded = Crowded(host);
    small = options.background_bytes;
    Meet(host, options.inbox);
    AllowShortSleeps();  // for the thread that will wait
    MPI_Comm_free(&host);
    size_t piece = std::clamp<size_t>(options.piece_bytes, 1, INT_MAX);
    requests = std::make_unique<MpiRequests>(comm, piece, options.background_bytes);
    if (options.background_progress && size > 1) thread = std::thread([this] { Background(); });
  }

  // Finds the inboxes of the other ranks of the host. Collective, even for ranks that want none.
  void Meet(MPI_Comm host, bool wanted) {
    struct Found {
      int rank;
      InboxName name;
    };
    int ranks = 1, mine = 0;
    MPI_Comm_size(host, &ranks);
    MPI_Comm_rank(host, &mine);
    inbox = std::make_unique<Inbox>(wanted ? ranks - 1 : 0);
    Found found{rank, inbox->name()};
    std::vector<Found> all(ranks);
    constexpr int kBytes = sizeof found;
    CheckMpi(MPI_Allgather(&found, kBytes, MPI_BYTE, all.data(), kBytes, MPI_BYTE, host),
             "MPI_Allgather");
    // Senders are numbered by their index on the host, skipping the receiver.
    std::vector<char> reached(ranks), reaches(ranks);
    for (int i = 0; i < ranks; ++i) {
      if (i == mine || !wanted) continue;
      HostRank& other = host_ranks[all[i].rank];
      other.place = i < mine ? i : i - 1;
      other.outbox = Outbox::Open(all[i].name, mine < i ? mine : mine - 1);
      reached[i] = other.outbox != nullptr;
    }
    CheckMpi(MPI_Alltoall(reached.data(), 1, MPI_BYTE, reaches.data(), 1, MPI_BYTE, host),
             "MPI_Alltoall");
    bool any = false;
    for (int i = 0; i < ranks; ++i) {
      if (!reaches[i]) continue;
      host_ranks.at(all[i].rank).writes = any = true;
    }
    if (!any) inbox = nullptr;
  }

  ~State() {
    if (thread.joinable()) {
      {
        std::lock_guard lock(sleep_mutex);
        stop = true;
      }
      wake.notify_one();
      thread.join();
    }
    requests->PostQueued();
    auto moved = Clock::now();
    while (requests->pending() > 0 && Clock::now() - moved < std::chrono::seconds(1)) {
      if (requests->AdvanceAll()) moved = Clock::now();
      std::this_thread::yield();
    }
    bool clean = requests->pending() == 0;
    requests->Drop();
    if (clean) MPI_Comm_free(&comm);
    if (finalize) MPI_Finalize();
  }

  // Runs the thread that makes progress while the rank's thread computes without calling Progress.
  // It polls the clock now and then; waking it at each action would cost a context switch per
  // action.
  void Background() {
    prctl(PR_SET_NAME, "pipewright-mpi");
    AllowShortSleeps();
    auto unseen = [&] { return Clock::now() - Clock::time_point(Clock::duration(looked)); };
    auto needed = [&] { return !stop && computing && requests->background(); };
    Clock::duration rest = kUnseen;
    Clock::time_point last_needed{};
    std::unique_lock lock(sleep_mutex);
    while (!wake.wait_for(lock, rest, [&] { return stop.load(); })) {
      if (Clock::now() - last_needed > kRemembered)
        rest = std::min<Clock::duration>(2 * rest, kMostBetweenChecks);
      if (!needed() || unseen() < kUnseen) continue;
      lock.unlock();
      while (needed() && Look()) continue;  // more will follow
      lock.lock();
      rest = kUnseen, last_needed = Clock::now();
    }
  }

  // Returns true if something has moved: a piece has completed, or the test took so long that it
  // must have copied data.
  bool Look() {
    const auto start = Clock::now();
    looked = start.time_since_epoch().count();
    std::unique_lock lock(mpi, std::try_to_lock);
    if (!lock) return false;
    requests->PostQueued();
    bool completed = requests->AdvanceAll();
    lock.unlock();
    return completed || Clock::now() - start > microseconds(4);
  }

  void Progress() {
    if (!computing || !requests->background()) return;
    if (Clock::now() - Clock::time_point(Clock::duration(looked)) < between) return;
    between = Look() ? kBetweenLooks : std::min(2 * between, kMostBetweenLooks);
  }

  void BeginCompute() {
    looked = Clock::now().time_since_epoch().count();
    computing = true;
  }

  Token Post(bool send, int peer, int tag, Bundle bundle) {
    auto op = std::make_shared<MpiOperation>();
    op->send = send;
    op->peer = peer;
    op->tag = tag;
    op->bundle = std::move(bundle);
    if (auto other = host_ranks.find(peer); other != host_ranks.end())
      ThroughInbox(*op, other->second);
    requests->Queue(op);
    // If the other thread holds MPI, it posts the operation (or the next call here does).
    if (std::unique_lock lock(mpi, std::try_to_lock); lock) requests->PostQueued();
    return op;
  }

  // Copies the data if the receiver has offered memory, or makes such an offer to the sender.
  void ThroughInbox(MpiOperation& op, HostRank& other) {
    if (op.send ? !other.outbox : !other.writes) return;
    const uint64_t message = (op.send ? other.sent : other.received)[op.tag]++;
    const std::vector<Region>& regions = op.bundle.regions;
    for (size_t i = 0; i < regions.size(); ++i) {
      if (regions[i].bytes <= small) continue;
      if (op.send) {
        if (!other.outbox->Put(op.tag, message, i, regions[i])) continue;
        op.put.resize(regions.size());
        op.put[i] = true;
      } else {
        op.offers.resize(regions.size());
        op.offers[i] = inbox->Make(other.place, op.tag, message, i, regions[i]);
      }
    }
  }

  static bool Done(const MpiOperation& op) {
    if (!op.done.load(std::memory_order_acquire)) return false;
    if (!op.error.empty()) throw Error(op.error);
    return true;
  }

  bool Test(MpiOperation& op) {
    if (Done(op)) return true;
    std::unique_lock lock(mpi, std::try_to_lock);
    if (!lock) return false;
    requests->PostQueued();
    requests->Advance(op);
    lock.unlock();
    return Done(op);
  }

  // Holds MPI until `done`; the background thread sleeps meanwhile.
  template <class F>
  void WaitUntil(F done) {
    computing = false;
    std::lock_guard lock(mpi);
    requests->PostQueued();
    for (SpinWait spin(crowded, disturbed); !done();) spin.Pause();
  }

  void WaitRequest(MPI_Request& request, const char* call) {
    int code = MPI_SUCCESS;
    WaitUntil([&] {
      int flag = 0;
      code = MPI_Test(&request, &flag, MPI_STATUS_IGNORE);
      return flag || code != MPI_SUCCESS;
    });
    CheckMpi(code, call);
  }

  // Constant after construction.
  MPI_Comm comm = MPI_COMM_NULL;
  int rank = 0, size = 1, max_tag = 32767;
  bool crowded = false;  // this host has more ranks than cores
  bool finalize = false;
  size_t small = 0;  // MPI completes regions of at most this many bytes when they are posted

  // Used by the rank's thread only.
  std::unique_ptr<Inbox> inbox;        // null if no other rank has mapped it
  std::map<int, HostRank> host_ranks;  // by rank: the others of this host, if inboxes are wanted
  microseconds between = kBetweenLooks;
  Clock::time_point disturbed{};  // see SpinWait

  std::mutex mpi;                         // guards MPI itself
  std::unique_ptr<MpiRequests> requests;  // guarded by mpi

  std::mutex sleep_mutex;
  std::condition_variable wake;
  std::atomic<bool> stop{false}, computing{false};
  std::atomic<Clock::rep> looked{0};  // time of the last test by either thread
  std::thread thread;
};

MpiTransport::MpiTransport(int* argc, char*** argv, const MpiOptions& options)
    : state_(std::make_unique<State>(argc, argv, options)) {}
MpiTransport::~MpiTransport() {
  status().WaitFor({Awaited::kEveryRank});  // MPI_Finalize waits for them
  state_ = nullptr;
}

int MpiTransport::rank() const { return state_->rank; }
int MpiTransport::size() const { return state_->size; }
int MpiTransport::max_tag() const { return state_->max_tag; }

std::shared_ptr<void> MpiTransport::Memory(size_t bytes) {
  return !state_->inbox || bytes <= state_->small ? nullptr : state_->inbox->Allocate(bytes);
}

Token MpiTransport::Send(int peer, int tag, Bundle bundle) {
  RequireHostMemory(bundle);
  return state_->Post(true, peer, tag, std::move(bundle));
}
Token MpiTransport::Recv(int peer, int tag, Bundle bundle) {
  RequireHostMemory(bundle);
  return state_->Post(false, peer, tag, std::move(bundle));
}
bool MpiTransport::Test(const Token& token) {
  return state_->Test(static_cast<MpiOperation&>(*token));
}
void MpiTransport::Wait(const Token& token) {
  auto& op = static_cast<MpiOperation&>(*token);
  if (!State::Done(op)) state_->WaitUntil([&] { return state_->requests->Advance(op); });
  State::Done(op);
}

bool MpiTransport::NeedsProgress() const { return state_->size > 1; }
void MpiTransport::Progress() { state_->Progress(); }
void MpiTransport::BeginCompute() { state_->BeginCompute(); }

size_t MpiTransport::Pending() {
  std::lock_guard lock(state_->mpi);
  state_->requests->PostQueued();
  return state_->requests->pending();
}

std::vector<std::string> MpiTransport::AllGather(const std::string& bytes) {
  State& s = *state_;
  if (bytes.size() > INT_MAX) throw Error("AllGather", "more than 2 GiB from one rank");
  int mine = static_cast<int>(bytes.size());
  std::vector<int> sizes(s.size), offsets(s.size);
  MPI_Request request;
  auto start = [&](int code, const char* call) { CheckMpi(code, call); };
  {
    std::lock_guard lock(s.mpi);
    s.requests->PostQueued();
    start(MPI_Iallgather(&mine, 1, MPI_INT, sizes.data(), 1, MPI_INT, s.comm, &request),
          "MPI_Iallgather");
  }
  status().WaitFor({Awaited::kEveryRank});
  s.WaitRequest(request, "MPI_Iallgather");
  int64_t total = 0;
  for (int r = 0; r < s.size; ++r) {
    offsets[r] = static_cast<int>(total);
    total += sizes[r];
  }
  if (total > INT_MAX) throw Error("AllGather", "more than 2 GiB from all ranks");
  std::string all(total, '\0');
  if (total > 0) {
    {
      std::lock_guard lock(s.mpi);
      start(MPI_Iallgatherv(bytes.data(), mine, MPI_BYTE, all.data(), sizes.data(), offsets.data(),
                            MPI_BYTE, s.comm, &request),
            "MPI_Iallgatherv");
    }
    s.WaitRequest(request, "MPI_Iallgatherv");
  }
  status().WaitFor({});
  std::vector<std::string> result;
  for (int r = 0; r < s.size; ++r) result.push_back(all.substr(offsets[r], sizes[r]));
  return result;
}

void MpiTransport::Abort(const std::string& message, int exit_code) {
  status().SetState(RankState::kFailed);
  std::fflush(nullptr);
  std::string line = message + "\n";
  for (size_t at = 0; at < line.size();) {
    ssize_t written = write(STDERR_FILENO, line.data() + at, line.size() - at);
    if (written <= 0) break;
    at += written;
  }
  // If MPI hangs after an error, the alarm ends this rank, and mpirun the others.
  std::signal(SIGALRM, SIG_DFL);
  alarm(5);
  for (int i = 0; i < 100 && !state_->mpi.try_lock(); ++i) usleep(1000);
  AbortQuietly(state_->comm, exit_code);
  MPI_Abort(state_->comm, exit_code);
  _exit(exit_code);
}

}  // namespace pipewright
