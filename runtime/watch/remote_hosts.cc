#include "runtime/watch/remote_hosts.h"

#include <arpa/inet.h>
#include <ifaddrs.h>
#include <net/if.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <filesystem>
#include <sstream>

#include "base/error.h"
#include "base/files/read_file.h"
#include "base/text.h"

namespace pipewright {

RemoteHosts::RemoteHosts() {
  socket_ = socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
  sockaddr_in any = {};
  any.sin_family = AF_INET;
  if (socket_ < 0 || bind(socket_, reinterpret_cast<sockaddr*>(&any), sizeof(any)) != 0)
    throw Error("UDP socket", strerror(errno));
}

RemoteHosts::~RemoteHosts() { close(socket_); }

std::string RemoteHosts::address() const {
  sockaddr_in mine = {};
  socklen_t length = sizeof(mine);
  getsockname(socket_, reinterpret_cast<sockaddr*>(&mine), &length);
  std::string text = std::to_string(ntohs(mine.sin_port));
  ifaddrs* all = nullptr;
  if (getifaddrs(&all) != 0) return text;
  for (ifaddrs* one = all; one; one = one->ifa_next) {
    if (!one->ifa_addr || one->ifa_addr->sa_family != AF_INET) continue;
    if (!(one->ifa_flags & IFF_UP) || (one->ifa_flags & IFF_LOOPBACK)) continue;
    char name[INET_ADDRSTRLEN];
    auto* address = reinterpret_cast<sockaddr_in*>(one->ifa_addr);
    text += " " + std::string(inet_ntop(AF_INET, &address->sin_addr, name, sizeof(name)));
  }
  freeifaddrs(all);
  return text;
}

void RemoteHosts::Join(uint64_t token, const std::vector<Host>& others) {
  token_ = token;
  for (const Host& host : others) {
    Other other;
    other.host = host;
    std::istringstream in(host.address);
    int port = 0;
    in >> port;
    for (std::string name; in >> name;) {
      sockaddr_in address = {};
      address.sin_family = AF_INET;
      address.sin_port = htons(static_cast<uint16_t>(port));
      if (inet_pton(AF_INET, name.c_str(), &address.sin_addr) == 1)
        other.addresses.push_back(address);
    }
    others_.push_back(std::move(other));
  }
}

bool RemoteHosts::Exchange(const std::string& folder, double now) {
  std::error_code failed;
  for (const auto& entry : std::filesystem::directory_iterator(folder, failed)) {
    if (entry.path().extension() != ".status") continue;
    std::string message(reinterpret_cast<const char*>(&token_), sizeof(token_));
    try {
      message += ReadFile(entry.path());
    } catch (const Error&) {
      continue;
    }
    // Send errors are ignored: a network that is down shows in the missing messages.
    for (const Other& other : others_)
      for (const sockaddr_in& to : other.addresses)
        sendto(socket_, message.data(), message.size(), 0, reinterpret_cast<const sockaddr*>(&to),
               sizeof(to));
  }
  char bytes[4096];
  for (ssize_t size; (size = recv(socket_, bytes, sizeof(bytes), 0)) > 0;) {
    RankStatus status;
    if (static_cast<size_t>(size) < sizeof(token_) ||
        std::memcmp(bytes, &token_, sizeof(token_)) != 0 ||
        !DecodeStatus({bytes + sizeof(token_), size - sizeof(token_)}, status))
      continue;
    for (Other& other : others_) {
      if (std::find(other.host.ranks.begin(), other.host.ranks.end(), status.rank) ==
          other.host.ranks.end())
        continue;
      other.heard = now;
      std::erase_if(other.statuses, [&](const RankStatus& s) { return s.rank == status.rank; });
      other.statuses.push_back(status);
    }
  }
  return std::all_of(others_.begin(), others_.end(), [](const Other& other) {
    return other.statuses.size() == other.host.ranks.size();
  });
}

std::vector<RankStatus> RemoteHosts::statuses() const {
  std::vector<RankStatus> all;
  for (const Other& other : others_)
    all.insert(all.end(), other.statuses.begin(), other.statuses.end());
  return all;
}

std::string RemoteHosts::Silent(double now, double seconds) const {
  for (const Other& other : others_) {
    bool ended = !other.statuses.empty() &&
                 std::all_of(other.statuses.begin(), other.statuses.end(),
                             [](const auto& s) { return s.state != RankState::kRunning; });
    if (other.heard >= 0 && !ended && now - other.heard >= seconds) return other.host.name;
  }
  return "";
}

}  // namespace pipewright
