// Files of tensors that are not in memory: in a folder of this process, which goes away with the
// last of them.
#pragma once
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <string_view>

#include "plan/safetensors.h"

namespace pipewright {

class OffloadFolder {
 public:
  // The one of this process in `parent` ("": where temporary files go); made where there is none.
  // What processes have left in `parent` that have ended, however they did, is removed first: a
  // living one holds a lock. Throws Error.
  static std::shared_ptr<OffloadFolder> In(const std::string& parent);
  ~OffloadFolder();
  OffloadFolder(const OffloadFolder&) = delete;
  OffloadFolder& operator=(const OffloadFolder&) = delete;

  std::string NewPath();  // of no other file

 private:
  explicit OffloadFolder(std::string parent);
  std::string path_;
  int lock_ = -1;
  int process_ = 0;  // a forked one removes nothing
};

// Bytes as they are, in one file. A tensor that stays in memory while it is written takes no more.
// Until all is written, what was there before stays. Throws Error, also when the disk is full.
void WriteBytes(const std::string& path, std::string_view bytes);

}  // namespace pipewright
