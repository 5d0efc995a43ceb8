#include "runtime/transport/mpi_requests.h"

#include <algorithm>
#include <utility>

#include "runtime/exec/message_size.h"

namespace pipewright {

static std::string MpiErrorText(int code) {
  char text[MPI_MAX_ERROR_STRING];
  int length = 0;
  MPI_Error_string(code, text, &length);
  return std::string(text, length);
}

void CheckMpi(int code, const char* call) {
  if (code != MPI_SUCCESS) throw Error(call, MpiErrorText(code));
}

// MPI may still use the memory, so it is deliberately never freed.
static void Keep(MpiOperation& op) { new Bundle(std::move(op.bundle)); }

void MpiRequests::Queue(std::shared_ptr<MpiOperation> operation) {
  operation->bytes = TotalBytes(operation->bundle);
  if (InBackground(*operation)) background_.fetch_add(1);
  std::lock_guard lock(queue_mutex_);
  queue_.push_back(std::move(operation));
  queued_.store(true, std::memory_order_release);
}

void MpiRequests::PostQueued() {
  if (!queued_.load(std::memory_order_acquire)) return;
  std::vector<std::shared_ptr<MpiOperation>> queue;
  {
    std::lock_guard lock(queue_mutex_);
    queue.swap(queue_);
    queued_.store(false, std::memory_order_relaxed);
  }
  // Without background progress nothing else removes completed transfers from the list.
  while (!active_.empty() && active_.front()->done.load(std::memory_order_relaxed))
    active_.pop_front();
  for (auto& operation : queue) {
    Post(operation);
    if (!operation->done.load(std::memory_order_relaxed)) active_.push_back(std::move(operation));
  }
}

// Returns the region whose last piece proves that the receive of the whole message is posted,
// because MPI_Issend completes no earlier: the largest one, which MPI announces anyway instead of
// sending it ahead. If a region was written to the inbox, the receive's offer is that proof.
static size_t ProvingRegion(const MpiOperation& op) {
  const std::vector<Region>& regions = op.bundle.regions;
  if (!op.send || !op.put.empty() || regions.empty()) return regions.size();
  auto smaller = [](const Region& a, const Region& b) { return a.bytes < b.bytes; };
  return static_cast<size_t>(std::max_element(regions.begin(), regions.end(), smaller) -
                             regions.begin());
}

void MpiRequests::Post(const std::shared_ptr<MpiOperation>& operation) {
  MpiOperation& op = *operation;
  const size_t proving = ProvingRegion(op);
  auto post = [&](void* data, size_t bytes, size_t region, bool last) {
    MPI_Request request = MPI_REQUEST_NULL;
    int count = region < op.put.size() && op.put[region] ? 0 : static_cast<int>(bytes), code;
    if (!op.send)
      code = MPI_Irecv(data, count, MPI_BYTE, op.peer, op.tag, comm_, &request);
    else if (last && region == proving)
      code = MPI_Issend(data, count, MPI_BYTE, op.peer, op.tag, comm_, &request);
    else
      code = MPI_Isend(data, count, MPI_BYTE, op.peer, op.tag, comm_, &request);
    CheckMpi(code, op.send ? "MPI_Isend" : "MPI_Irecv");
    op.requests.push_back(request);
    if (!op.send) op.sizes.push_back(bytes), op.regions.push_back(region);
  };
  try {
    for (size_t i = 0; i < op.bundle.regions.size(); ++i) {
      // The last piece is always shorter, so that messages of different lengths never look alike.
      auto* data = static_cast<char*>(op.bundle.regions[i].data);
      size_t bytes = op.bundle.regions[i].bytes;
      for (; bytes >= piece_bytes_; bytes -= piece_bytes_, data += piece_bytes_)
        post(data, piece_bytes_, i, false);
      post(data, bytes, i, true);
    }
  } catch (const Error& e) {
    op.error = e.what();
    Keep(op);  // the sender may write to it too
    op.offers.clear();
  }
  op.left = op.requests.size();
  if (op.left == 0 || !op.error.empty()) {
    Complete(op);
  } else if (op.send) {
    Advance(op);  // a short message has already left
  }
}

// Returns true if the sender has copied this piece to its destination itself.
static bool Taken(const MpiOperation& op, size_t piece) {
  const size_t region = op.regions[piece];
  return region < op.offers.size() && op.offers[region] && op.offers[region]->taken();
}

void MpiRequests::Complete(MpiOperation& op) {
  // The regions of a failed receive may still be written to.
  for (Offer* offer : op.offers)
    if (offer && op.left == 0) offer->Withdraw();
  if (InBackground(op)) background_.fetch_sub(1, std::memory_order_relaxed);
  op.done.store(true, std::memory_order_release);
}

void MpiRequests::Finish(MpiOperation& op, size_t piece, int code, const MPI_Status& status) {
  op.requests[piece] = MPI_REQUEST_NULL;
  --op.left;
  if (op.done.load(std::memory_order_relaxed)) return;  // it failed earlier
  if (!op.send && code == MPI_SUCCESS) {
    MPI_Count count = 0;
    MPI_Get_elements_x(&status, MPI_BYTE, &count);
    const size_t bytes = count == 0 && Taken(op, piece) ? op.sizes[piece] : count;
    op.arrived += bytes;
    if (bytes != op.sizes[piece])
      op.error = SizeError(op.sizes.size() == 1 ? SizeText(op.arrived, 1) : "another length",
                           SizeText(op.bytes, 1));
  } else if (code != MPI_SUCCESS) {
    int kind = code;
    MPI_Error_class(code, &kind);
    op.error = kind == MPI_ERR_TRUNCATE
                   ? "a message longer than the " + SizeText(op.bytes, 1) + " expected arrived"
                   : MpiErrorText(code);
  }
  if (op.left > 0 && op.error.empty()) return;
  if (op.left > 0) Keep(op);
  op.bundle = {};
  Complete(op);
}

bool MpiRequests::Advance(MpiOperation& op) {
  // Works in order: if the sender's message is shorter, its pieces end before these do.
  for (size_t i = 0; i < op.requests.size(); ++i) {
    if (op.requests[i] == MPI_REQUEST_NULL) continue;
    int flag = 0;
    MPI_Status status;
    int code = MPI_Test(&op.requests[i], &flag, &status);
    if (!flag && code == MPI_SUCCESS) break;  // it may have failed already, in an earlier piece
    Finish(op, i, code, status);
  }
  return op.done.load(std::memory_order_relaxed);
}

bool MpiRequests::AdvanceAll() {
  while (!active_.empty() && active_.front()->done.load(std::memory_order_relaxed))
    active_.pop_front();
  requests_.clear();
  owners_.clear();
  for (const auto& op : active_) {
    for (size_t i = 0; i < op->requests.size(); ++i) {
      if (op->requests[i] == MPI_REQUEST_NULL) continue;
      requests_.push_back(op->requests[i]);
      owners_.push_back({op.get(), i});
    }
  }
  if (requests_.empty()) return false;
  indices_.resize(requests_.size());
  statuses_.resize(requests_.size());
  int count = 0;
  int code = MPI_Testsome(static_cast<int>(requests_.size()), requests_.data(), &count,
                          indices_.data(), statuses_.data());
  if (code != MPI_SUCCESS && code != MPI_ERR_IN_STATUS) CheckMpi(code, "MPI_Testsome");
  for (int i = 0; i < count; ++i) {
    auto [op, piece] = owners_[indices_[i]];
    Finish(*op, piece, code == MPI_ERR_IN_STATUS ? statuses_[i].MPI_ERROR : MPI_SUCCESS,
           statuses_[i]);
  }
  return count > 0;
}

size_t MpiRequests::pending() {
  AdvanceAll();
  size_t pending = 0;
  for (const auto& op : active_) pending += !op->done.load(std::memory_order_relaxed);
  return pending;
}

void MpiRequests::Drop() {
  for (const auto& op : active_) {
    if (op->done.load(std::memory_order_relaxed)) continue;
    Keep(*op);
    for (MPI_Request& request : op->requests) {
      if (request == MPI_REQUEST_NULL) continue;
      if (!op->send) MPI_Cancel(&request);
      MPI_Request_free(&request);
    }
  }
  active_.clear();
}

}  // namespace pipewright
