// The transfers of one MPI communicator. The caller holds the lock that guards MPI, except where
// said.
#pragma once
#include <mpi.h>

#include <atomic>
#include <cstddef>
#include <deque>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "runtime/exec/inbox.h"
#include "runtime/exec/transport.h"

namespace pipewright {

// Throws Error("MPI_X: text of the error").
void CheckMpi(int code, const char* call);

struct MpiOperation : Completion {
  bool send = false;
  int peer = -1, tag = 0;
  size_t bytes = 0;
  Bundle bundle;                      // until it has completed
  std::vector<bool> put;              // by region, of a send: its bytes are there, and sends none
  std::vector<Offer*> offers;         // by region, of a receive; null: none
  std::vector<MPI_Request> requests;  // by piece; MPI_REQUEST_NULL once complete
  std::vector<size_t> sizes;          // by piece, of a receive: bytes
  std::vector<size_t> regions;        // by piece, of a receive: its region
  size_t left = 0;                    // pieces not complete
  size_t arrived = 0;                 // bytes, of a receive
  std::string error;                  // written before `done`
  std::atomic<bool> done{false};
};

class MpiRequests {
 public:
  MpiRequests(MPI_Comm comm, bool synchronous, size_t piece_bytes, size_t background_bytes)
      : comm_(comm),
        synchronous_(synchronous),
        piece_bytes_(piece_bytes),
        background_bytes_(background_bytes) {}

  // Without the lock: takes note of an operation; PostQueued starts it. Keeps the order.
  void Queue(std::shared_ptr<MpiOperation> operation);
  void PostQueued();

  // Looks after one operation: true when it has completed. Makes progress for all.
  bool Advance(MpiOperation& operation);
  // Looks after all of them; true when a piece has completed.
  bool AdvanceAll();

  size_t pending();
  // Whether any of them needs progress while the rank computes. Without the lock.
  bool background() const { return background_.load() > 0; }
  // Gives up what is left. The memory stays allocated: MPI may still use it.
  void Drop();

 private:
  void Post(const std::shared_ptr<MpiOperation>& operation);
  void Finish(MpiOperation& operation, size_t piece, int code, const MPI_Status& status);
  void Complete(MpiOperation& operation);
  bool InBackground(const MpiOperation& operation) const {
    return operation.bytes > background_bytes_;
  }

  const MPI_Comm comm_;
  const bool synchronous_;
  const size_t piece_bytes_, background_bytes_;
  std::deque<std::shared_ptr<MpiOperation>> active_;  // some of them done
  std::vector<MPI_Request> requests_;                 // scratch of AdvanceAll, as the next three
  std::vector<std::pair<MpiOperation*, size_t>> owners_;
  std::vector<int> indices_;
  std::vector<MPI_Status> statuses_;
  std::atomic<int> background_{0};

  std::mutex queue_mutex_;
  std::vector<std::shared_ptr<MpiOperation>> queue_;  // guarded by queue_mutex_
  std::atomic<bool> queued_{false};
};

}  // namespace pipewright
