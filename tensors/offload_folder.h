// Keeps a folder of this process for files of tensors that are not in memory; it is removed with
// the last of them.
#pragma once
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <string_view>

#include "formats/weights/safetensors.h"

namespace pipewright {

class OffloadFolder {
 public:
  // Returns this process's folder in `parent` ("": the default for temporary files) and creates it
  // if missing. First removes folders in `parent` of processes that have ended in any way; a living
  // one holds a lock. Throws Error.
  static std::shared_ptr<OffloadFolder> In(const std::string& parent);
  ~OffloadFolder();
  OffloadFolder(const OffloadFolder&) = delete;
  OffloadFolder& operator=(const OffloadFolder&) = delete;

  std::string NewPath();  // a new, unique path

 private:
  explicit OffloadFolder(std::string parent);
  std::string path_;
  int lock_ = -1;
  int process_ = 0;  // a forked process removes nothing
};

// Writes plain bytes to one file, without extra memory. The previous file stays until everything is
// written. Throws Error, also when the disk is full.
void WriteBytes(const std::string& path, std::string_view bytes);

}  // namespace pipewright
