#include "communicator.h"

#include <poll.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstdlib>
#include <cstring>
#include <thread>
#include <utility>

#include "runtime/nccl/nccl_library.h"

namespace fake_nccl {

namespace {

using Clock = std::chrono::steady_clock;

constexpr int kLookMs = 5;  // how often waits look for an abort

// The first message on a socket.
struct Greeting {
  int rank = 0;
};

struct SocketAddress {
  sockaddr_un address{};
  socklen_t size = 0;

  const sockaddr* get() const { return reinterpret_cast<const sockaddr*>(&address); }
};

// An abstract name, so that no file stays behind.
SocketAddress AddressOf(const std::string& token, int rank) {
  const std::string name = "fake-nccl-" + token + "-" + std::to_string(rank);
  SocketAddress at;
  at.address.sun_family = AF_UNIX;
  std::memcpy(at.address.sun_path + 1, name.data(),
              std::min(name.size(), sizeof(at.address.sun_path) - 1));
  at.size = static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + 1 + name.size());
  return at;
}

// Children of a test must not keep connections open.
int MakeSocket() { return socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0); }

void WaitFor(const Communicator& comm, int socket, short events) {
  for (;;) {
    if (comm.aborted) throw OperationFailure{};
    pollfd look{socket, events, 0};
    if (poll(&look, 1, kLookMs) > 0) return;
  }
}

[[noreturn]] void FailMissing(const Communicator& comm) {
  throw OperationFailure{kSystemError, "rank " + std::to_string(comm.rank) + " of " +
                                           std::to_string(comm.ranks) +
                                           " waited for the others in vain"};
}

// Connects as soon as the peer listens.
int ConnectTo(const Communicator& comm, const std::string& token, int peer,
              Clock::time_point deadline) {
  const SocketAddress at = AddressOf(token, peer);
  for (;;) {
    const int made = MakeSocket();
    if (connect(made, at.get(), at.size) == 0) {
      const Greeting greeting{comm.rank};
      Put(comm, made, &greeting, sizeof(greeting));
      return made;
    }
    close(made);
    if (Clock::now() > deadline) FailMissing(comm);
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
}

void AcceptOne(Communicator& comm, int listener, Clock::time_point deadline) {
  pollfd look{listener, POLLIN, 0};
  while (poll(&look, 1, kLookMs) <= 0)
    if (Clock::now() > deadline) FailMissing(comm);
  const int made = accept4(listener, nullptr, nullptr, SOCK_CLOEXEC);
  Greeting greeting;
  Get(comm, made, &greeting, sizeof(greeting));
  comm.in.at(static_cast<size_t>(greeting.rank)) = made;
}

}  // namespace

int NumberFromEnvironment(const char* name, int otherwise) {
  const char* text = std::getenv(name);
  return text ? std::atoi(text) : otherwise;
}

FakeSettings SettingsFromEnvironment() {
  FakeSettings s;
  s.lazy = NumberFromEnvironment("FAKE_NCCL_LAZY", s.lazy) != 0;
  s.delay_us = NumberFromEnvironment("FAKE_NCCL_DELAY_US", s.delay_us);
  s.delay_from = NumberFromEnvironment("FAKE_NCCL_DELAY_FROM", s.delay_from);
  s.seed = NumberFromEnvironment("SIM_SEED", s.seed);
  s.fail_at = NumberFromEnvironment("FAKE_NCCL_FAIL_AT", s.fail_at);
  s.fail_code = NumberFromEnvironment("FAKE_NCCL_FAIL_CODE", s.fail_code);
  s.fail_rank = NumberFromEnvironment("FAKE_NCCL_FAIL_RANK", s.fail_rank);
  s.abort_seconds = NumberFromEnvironment("FAKE_NCCL_ABORT_S", s.abort_seconds);
  s.reverse = NumberFromEnvironment("FAKE_NCCL_REVERSE", s.reverse) != 0;
  s.init_seconds = NumberFromEnvironment("FAKE_NCCL_INIT_S", s.init_seconds);
  return s;
}

void Connect(Communicator& comm, const std::string& token) {
  const size_t ranks = static_cast<size_t>(comm.ranks);
  comm.out.assign(ranks, -1), comm.in.assign(ranks, -1);
  comm.out_used.assign(ranks, false), comm.in_used.assign(ranks, false);
  const auto deadline = Clock::now() + std::chrono::seconds(comm.settings.init_seconds);
  const SocketAddress at = AddressOf(token, comm.rank);
  struct Listener {
    int socket = MakeSocket();
    ~Listener() { close(socket); }
  } listener;
  if (bind(listener.socket, at.get(), at.size) != 0 || listen(listener.socket, 2 * comm.ranks) != 0)
    throw OperationFailure{kInvalidUsage, "two ranks have number " + std::to_string(comm.rank)};
  for (int peer = 0; peer < comm.ranks; ++peer)
    comm.out[static_cast<size_t>(peer)] = ConnectTo(comm, token, peer, deadline);
  for (int n = comm.ranks; n > 0; --n) AcceptOne(comm, listener.socket, deadline);
}

void CloseSockets(Communicator& comm) {
  for (auto* sockets : {&comm.out, &comm.in})
    for (int& socket : *sockets)
      if (socket >= 0) close(std::exchange(socket, -1));
}

void Put(const Communicator& comm, int socket, const void* data, size_t bytes) {
  for (auto* at = static_cast<const char*>(data); bytes > 0;) {
    WaitFor(comm, socket, POLLOUT);
    const ssize_t n = send(socket, at, bytes, MSG_NOSIGNAL | MSG_DONTWAIT);
    if (n < 0 && errno != EAGAIN)
      throw OperationFailure{pipewright::kNcclRemoteError, "the connection to a rank is closed"};
    if (n > 0) at += n, bytes -= static_cast<size_t>(n);
  }
}

void Get(const Communicator& comm, int socket, void* data, size_t bytes) {
  for (auto* at = static_cast<char*>(data); bytes > 0;) {
    WaitFor(comm, socket, POLLIN);
    const ssize_t n = recv(socket, at, bytes, MSG_DONTWAIT);
    if (n == 0 || (n < 0 && errno != EAGAIN))
      throw OperationFailure{pipewright::kNcclRemoteError, "the connection to a rank is closed"};
    if (n > 0) at += n, bytes -= static_cast<size_t>(n);
  }
}

void SetError(Communicator& comm, int result, const std::string& what) {
  std::lock_guard lock(comm.mutex);
  if (comm.error != 0) return;
  comm.problem = what;
  comm.error = result;
}

}  // namespace fake_nccl
