#include "runtime/reports/event_file.h"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <bit>
#include <cerrno>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <filesystem>

#include "base/error.h"
#include "base/files/output_folder.h"
#include "base/process/messages.h"
#include "base/process/terminal.h"
#include "runtime/output_locks.h"

namespace pipewright {

uint32_t Crc32c(std::string_view bytes) {
  static const std::array<uint32_t, 256> table = [] {
    std::array<uint32_t, 256> made{};
    for (uint32_t i = 0; i < made.size(); ++i) {
      made[i] = i;
      for (int bit = 0; bit < 8; ++bit) made[i] = made[i] >> 1 ^ (made[i] & 1 ? 0x82f63b78u : 0);
    }
    return made;
  }();
  uint32_t crc = ~0u;
  for (char byte : bytes) crc = crc >> 8 ^ table[(crc ^ static_cast<uint8_t>(byte)) & 0xff];
  return ~crc;
}

namespace {

enum WireType { kVarint = 0, kFixed64 = 1, kBytes = 2, kFixed32 = 5 };

// Fields of a protobuf message, appended in turn.
class Message {
 public:
  Message& Number(int field, uint64_t value) {
    Tag(field, kVarint);
    Varint(value);
    return *this;
  }
  Message& Double(int field, double value) {
    Tag(field, kFixed64);
    Fixed(std::bit_cast<uint64_t>(value));
    return *this;
  }
  Message& Float(int field, float value) {
    Tag(field, kFixed32);
    Fixed(std::bit_cast<uint32_t>(value));
    return *this;
  }
  Message& Bytes(int field, std::string_view value) {
    Tag(field, kBytes);
    Varint(value.size());
    text += value;
    return *this;
  }
  template <typename T>  // an unsigned number; the lowest byte comes first
  void Fixed(T value) {
    for (size_t i = 0; i < sizeof value; ++i) text += static_cast<char>(value >> 8 * i & 0xff);
  }

  std::string text;

 private:
  void Tag(int field, WireType type) { Varint(static_cast<uint64_t>(field) << 3 | type); }
  void Varint(uint64_t value) {
    for (; value >= 0x80; value >>= 7) text += static_cast<char>((value & 0x7f) | 0x80);
    text += static_cast<char>(value);
  }
};

std::string Record(const std::string& data) {
  const auto checksum = [](std::string_view bytes) {
    const uint32_t crc = Crc32c(bytes);
    return (crc >> 15 | crc << 17) + 0xa282ead8u;
  };
  Message record;
  record.Fixed(static_cast<uint64_t>(data.size()));
  record.Fixed(checksum(record.text));
  record.text += data;
  record.Fixed(checksum(data));
  return record.text;
}

double Seconds() {
  return std::chrono::duration<double>(std::chrono::system_clock::now().time_since_epoch()).count();
}

// Fields of an Event: 1 wall_time, 2 step, 3 file_version, 5 summary, 7 session_log.
Message Event(int64_t step) {
  return Message().Double(1, Seconds()).Number(2, static_cast<uint64_t>(step));
}

std::string HostName() {
  char name[256] = "host";
  (void)!gethostname(name, sizeof name - 1);
  return name;
}

constexpr char kPrefix[] = "events.out.tfevents.";

// Returns the time, or the second after that of the newest file: TensorBoard reads a folder's files
// in the order of their names, and this host's clock may be behind that of an earlier host.
int64_t SecondsOfName(const std::string& folder) {
  auto seconds = static_cast<int64_t>(Seconds());
  for (const auto& entry : std::filesystem::directory_iterator(folder)) {
    const std::string name = entry.path().filename().string();
    if (name.starts_with(kPrefix))
      seconds = std::max<int64_t>(seconds, std::atoll(name.c_str() + sizeof kPrefix - 1) + 1);
  }
  return seconds;
}

}  // namespace

EventFile::EventFile(const std::string& folder, int64_t first_step) {
  CheckFolder(folder);
  std::error_code failed;  // shows when the file is opened
  std::filesystem::create_directories(folder, failed);
  lock_ = LockFile(folder + "/events");
  path_ = folder + "/" + kPrefix + std::to_string(SecondsOfName(folder)) + "." + HostName() + "." +
          std::to_string(getpid());
  fd_ = open(path_.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0644);
  if (fd_ < 0)
    throw Error(path_, std::string("cannot be written: ") + std::strerror(errno),
                "name another folder");
  constexpr uint64_t kStart = 1;  // SessionLog.SessionStatus
  Write(Record(Event(0).Bytes(3, "brain.Event:2").text) +
        Record(Event(first_step + 1).Bytes(7, Message().Number(1, kStart).text).text));
}

EventFile::~EventFile() {
  if (fd_ >= 0) close(fd_);
}

void EventFile::Write(const std::string& events) {
  for (size_t done = 0; fd_ >= 0 && done < events.size();) {
    const ssize_t written = write(fd_, events.data() + done, events.size() - done);
    if (written < 0 && errno == EINTR) continue;
    if (written >= 0) {
      done += static_cast<size_t>(written);
      continue;
    }
    PrintWarning(path_ + ": cannot be written (" + std::strerror(errno) +
                 "): the run continues, and the curves end here");
    (void)!ftruncate(fd_, size_);  // readers stop at an incomplete record
    close(fd_);
    fd_ = -1;
  }
  size_ += static_cast<int64_t>(events.size());
}

void EventFile::Add(int64_t step, const std::vector<std::pair<std::string, double>>& curves) {
  // Fields of a Summary: 1 value, again and again; of a value: 1 tag, 2 simple_value.
  Message summary;
  for (const auto& [name, value] : curves)
    summary.Bytes(1, Message().Bytes(1, name).Float(2, static_cast<float>(value)).text);
  Write(Record(Event(step).Bytes(5, summary.text).text));
}

}  // namespace pipewright
