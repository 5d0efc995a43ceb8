// A communicator of the fake NCCL: ranks are joined by unix sockets, and are processes, or threads
// of one process.
#pragma once
#include <atomic>
#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <mutex>
#include <set>
#include <string>
#include <vector>

namespace fake_nccl {

// NCCL's results, beside those of runtime/nccl/nccl_library.h.
enum FailureResult {
  kUnhandledDevice = 1,
  kSystemError = 2,
  kInvalidArgument = 4,
  kInvalidUsage = 5
};

// Environment variables, read when a communicator is made.
struct FakeSettings {
  bool lazy = true;       // FAKE_NCCL_LAZY=0: the first use of a connection does not block the host
  int delay_us = 0;       // FAKE_NCCL_DELAY_US: the longest random wait before an operation
  int delay_from = 1;     // FAKE_NCCL_DELAY_FROM: the first operation that waits, from 1
  int seed = 0;           // SIM_SEED: of these waits
  int fail_at = 0;        // FAKE_NCCL_FAIL_AT: this operation of the communicator fails, from 1
  int fail_code = 6;      // FAKE_NCCL_FAIL_CODE: with this result
  int fail_rank = -1;     // FAKE_NCCL_FAIL_RANK: on this rank; -1: on each
  int abort_seconds = 0;  // FAKE_NCCL_ABORT_S: how long ncclCommAbort takes
  bool reverse = false;   // FAKE_NCCL_REVERSE=1: sums are added from the last rank to the first
  int init_seconds = 20;  // FAKE_NCCL_INIT_S: how long to wait for the other ranks
};
FakeSettings SettingsFromEnvironment();
int NumberFromEnvironment(const char* name, int otherwise);

// Ends an operation: the connection is closed, or the communicator aborted (result 0).
struct OperationFailure {
  int result = 0;
  std::string what;
};

struct Communicator {
  int rank = 0, ranks = 0;
  int device = 0;  // that of the thread that made it, as with NCCL
  FakeSettings settings;
  // By peer: the sockets to send and to receive by.
  std::vector<int> out, in;
  std::vector<bool> out_used, in_used;  // by the thread that launches
  std::atomic<bool> aborted = false;
  std::atomic<int> error = 0;
  std::atomic<int> operations = 0;

  std::mutex mutex;
  std::condition_variable changed;
  // Groups run in the order of their launch. Those that ended were done or aborted.
  uint64_t launched = 0, done = 0, ended = 0;
  std::set<void*> streams;  // on which groups were launched
  int users = 0;            // threads that may be using the sockets
  std::string problem;      // text of `error`
};

// Joins the ranks of a communicator. Throws OperationFailure.
void Connect(Communicator& comm, const std::string& token);
void CloseSockets(Communicator& comm);

// Move bytes through a socket; wait for the peer until it is gone or the communicator is aborted.
void Put(const Communicator& comm, int socket, const void* data, size_t bytes);
void Get(const Communicator& comm, int socket, void* data, size_t bytes);

// Keeps the first error.
void SetError(Communicator& comm, int result, const std::string& what);

}  // namespace fake_nccl
