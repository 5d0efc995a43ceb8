// MpiRequests tracks the transfers of one MPI communicator. The caller must hold the lock that
// guards MPI, unless a function says otherwise.
#pragma once
#include <mpi.h>

#include <atomic>
#include <cstddef>
#include <deque>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "runtime/exec/transport.h"
#include "runtime/transport/inbox.h"

namespace pipewright {

// Throws Error("MPI_X: text of the error").
void CheckMpi(int code, const char* call);

struct MpiOperation : Completion {
  bool send = false;
  int peer = -1, tag = 0;
  size_t bytes = 0;
  Bundle bundle;                      // kept until the transfer completes
  std::vector<bool> put;              // sends, by region: written through the inbox, not by MPI
  std::vector<Offer*> offers;         // receives, by region: null if there is no offer
  std::vector<MPI_Request> requests;  // by piece; MPI_REQUEST_NULL once complete
  std::vector<size_t> sizes;          // receives, by piece: bytes
  std::vector<size_t> regions;        // receives, by piece: index of its region
  size_t left = 0;                    // incomplete pieces
  size_t arrived = 0;                 // receives: bytes that arrived
  std::string error;                  // written before `done`
  std::atomic<bool> done{false};
};

class MpiRequests {
 public:
  MpiRequests(MPI_Comm comm, size_t piece_bytes, size_t background_bytes)
      : comm_(comm),
        piece_bytes_(piece_bytes),
        background_bytes_(background_bytes) {}

  // Registers an operation, which PostQueued later starts in order. Needs no lock.
  void Queue(std::shared_ptr<MpiOperation> operation);
  void PostQueued();

  // Tests one operation and returns true if it is complete. Makes progress for all.
  bool Advance(MpiOperation& operation);
  // Tests all operations and returns true if any piece has completed.
  bool AdvanceAll();

  size_t pending();
  // Returns true if any operation needs progress while the rank computes. Needs no lock.
  bool background() const { return background_.load() > 0; }
  // Abandons the remaining operations. Their memory stays allocated, because MPI may still use it.
  void Drop();

 private:
  void Post(const std::shared_ptr<MpiOperation>& operation);
  void Finish(MpiOperation& operation, size_t piece, int code, const MPI_Status& status);
  void Complete(MpiOperation& operation);
  bool InBackground(const MpiOperation& operation) const {
    return operation.bytes > background_bytes_;
  }

  const MPI_Comm comm_;
  const size_t piece_bytes_, background_bytes_;
  std::deque<std::shared_ptr<MpiOperation>> active_;  // includes completed ones
  std::vector<MPI_Request> requests_;                 // scratch of AdvanceAll, like the next three
  std::vector<std::pair<MpiOperation*, size_t>> owners_;
  std::vector<int> indices_;
  std::vector<MPI_Status> statuses_;
  std::atomic<int> background_{0};

  std::mutex queue_mutex_;
  std::vector<std::shared_ptr<MpiOperation>> queue_;  // guarded by queue_mutex_
  std::atomic<bool> queued_{false};
};

}  // namespace pipewright
