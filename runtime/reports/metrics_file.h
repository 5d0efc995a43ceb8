// Writes the metrics file of a run: one JSON line per step.
#pragma once
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>

#include "base/files/owner_lock.h"

namespace pipewright {

// A run that has computed for long does not end because a disk is full: lines that cannot be
// written wait in memory, and are tried again with the next one.
class MetricsFile {
 public:
  // Locks the file. A resumed run keeps the lines of the first `steps` steps, which come first.
  // Throws Error if it cannot be opened.
  MetricsFile(const std::string& path, int64_t steps);
  // Says how many lines are missing.
  ~MetricsFile();
  MetricsFile(const MetricsFile&) = delete;

  void Add(const std::string& line, int64_t step);

 private:
  bool Write();  // writes waiting lines; false: errno says why not

  const std::string path_;
  std::unique_ptr<OwnerLock> lock_;
  int fd_ = -1;
  int64_t size_ = -1;      // bytes of complete lines in a regular file; -1: a pipe or device
  std::string waiting_;
  int64_t waiting_lines_ = 0, lost_ = 0;
  bool told_ = false;  // true once it has said that lines wait
};

}  // namespace pipewright
