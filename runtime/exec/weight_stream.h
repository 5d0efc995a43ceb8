// Weights of offloaded stages, read from their files ahead of use: threads of its own fill a fixed
// pool of aligned buffers, in the order of the LOADs, while the stage before computes.
#pragma once
#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "plan/plan.h"
#include "runtime/exec/weight_layout.h"

namespace pipewright {

// Since the start; bytes.
struct StreamStats {
  uint64_t payload = 0;  // of the weights that were asked for
  uint64_t direct = 0;   // read past the page cache: whole blocks
  uint64_t cached = 0;   // copied out of the page cache, or read through it
  uint64_t mapped = 0;   // used where they lie in the page cache
  double reading = 0;    // seconds in which any of the threads read
  double waited = 0;     // seconds in which computes waited for them
  // What the system counted for the threads (/proc/thread-self/io): bytes of reads, and those
  // that came from the disk.
  uint64_t counted_reads = 0, counted_disk = 0;
};

class WeightStream {
 public:
  // `lists`: of a rank, each of which evicts what it loads. LOADs and EVICTs come in the order of
  // the first, again and again, until Follow names another. The buffers are as many as are loaded
  // at once and as large as what each of them takes; all are allocated here. Throws Error for files
  // that cannot be opened.
  WeightStream(const std::vector<std::vector<Action>>& lists,
               const std::map<int, std::vector<WeightPiece>>& stages);
  ~WeightStream();

  void Follow(size_t list);  // from its start; nothing is loaded now
  void Load(int stage);      // begins; returns at once
  // Where the stage's pieces are, in their order, each on a 64-byte boundary as tensors of their
  // own would be, so that kernels round alike. Waits for them. Valid until Evict; may be written
  // to. Throws Error when they could not be read.
  const std::vector<char*>& Wait(int stage);
  void Evict(int stage);
  // Whether an address lies in the buffer of a loaded stage.
  bool Holds(int stage, const void* address) const;

  StreamStats stats() const;
  const std::vector<uint64_t>& buffers() const;  // bytes of each

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace pipewright
