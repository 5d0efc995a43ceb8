// Reads weights of offloaded stages from their files ahead of use: reader threads fill a fixed pool
// of aligned buffers, in the order of the LOADs, while the previous stage computes.
#pragma once
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "plan/plan.h"
#include "runtime/disk/weight_layout.h"
#include "runtime/exec/status.h"

namespace pipewright {

// Totals since the start, in bytes.
struct StreamStats {
  uint64_t payload = 0;  // weights that were requested
  uint64_t direct = 0;   // whole blocks read past the page cache
  uint64_t cached = 0;   // copied from the page cache, or read through it
  uint64_t mapped = 0;   // used in place in the page cache
  double reading = 0;    // seconds during which at least one thread was reading
  double waited = 0;     // seconds that computation waited for weights
  // Totals from /proc/thread-self/io of the threads: bytes read, and bytes read from the disk.
  uint64_t counted_reads = 0, counted_disk = 0;
};

// Returns memory of this size, at a multiple of kBlock.
using BufferMemory = std::function<std::shared_ptr<void>(uint64_t bytes)>;

class WeightStream {
 public:
  // `lists` are action lists of this rank, each of which evicts what it loads. LOADs and EVICTs
  // must follow the first list, repeatedly, until Follow selects another. The pool has as many
  // buffers as there are stages loaded at once, each as large as the largest stage that uses it;
  // all are allocated here, from `memory` if it is given. Weights are then always read into them,
  // and otherwise used in place where the page cache has them. Throws Error if a file cannot be
  // opened.
  WeightStream(const std::vector<std::vector<Action>>& lists,
               const std::map<int, std::vector<WeightPiece>>& stages,
               const BufferMemory& memory = nullptr);
  ~WeightStream();

  // Makes `status`, which must outlive the stream, show when the rank waits for a stage.
  void ReportTo(StatusFile& status);

  void Follow(size_t list);  // continues at its start; no stage may be loaded
  void Load(int stage);      // starts reading and returns immediately
  // Waits for the stage's pieces and returns their addresses, in order, each on a 64-byte boundary
  // like a tensor of its own, so that kernels round the same way. Valid until Evict; may be written
  // to. Throws Error if they could not be read.
  const std::vector<char*>& Wait(int stage);
  void Evict(int stage);
  // Returns the number of the buffer that a loaded stage lies in, if it is not used in place. The
  // first bytes of it are the stage's.
  size_t BufferOf(int stage) const;
  uint64_t BytesOf(int stage) const;
  // Returns true if the address lies in the buffer of a loaded stage.
  bool Holds(int stage, const void* address) const;

  StreamStats stats() const;
  const std::vector<uint64_t>& buffers() const;  // bytes of each buffer

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace pipewright
