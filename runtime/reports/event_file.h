// Curves for TensorBoard: an event file, as TensorBoard reads it from a run's folder. The file is a
// row of TFRecords (tensorflow/core/lib/io/record_writer.h: length, its checksum, data, their
// checksum), each an Event (tensorflow/core/util/event.proto) in protobuf's wire format.
#pragma once
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/files/owner_lock.h"

namespace pipewright {

class EventFile {
 public:
  // Creates the folder if it is missing, locks it, and creates a new file in it. TensorBoard
  // discards what earlier files say about steps from `first_step` on, because a resumed run repeats
  // them. Throws Error if the file cannot be created, or if another run writes to the folder.
  EventFile(const std::string& folder, int64_t first_step);
  ~EventFile();
  EventFile(const EventFile&) = delete;

  // Adds a point to each curve and writes it out. If that fails, says so once, and the file ends
  // with the steps before.
  void Add(int64_t step, const std::vector<std::pair<std::string, double>>& curves);

 private:
  void Write(const std::string& events);

  std::unique_ptr<OwnerLock> lock_;
  std::string path_;
  int fd_ = -1;  // -1: writing has failed
  int64_t size_ = 0;
};

// Returns the CRC-32C (Castagnoli) of RFC 3720.
uint32_t Crc32c(std::string_view bytes);

}  // namespace pipewright
