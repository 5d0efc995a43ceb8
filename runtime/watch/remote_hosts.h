// Exchanges the status of ranks with other hosts. Once a second, one process per host sends the
// status of its host's ranks to one process of each other host, over UDP; lost packets are replaced
// by later ones.
#pragma once
#include <netinet/in.h>

#include <cstdint>
#include <string>
#include <vector>

#include "runtime/exec/status.h"

namespace pipewright {

class RemoteHosts {
 public:
  // Throws Error if no socket can be opened.
  RemoteHosts();
  ~RemoteHosts();
  RemoteHosts(const RemoteHosts&) = delete;

  // Returns where this process is reached: "PORT ADDRESS ADDRESS", one address per network (IPv4).
  std::string address() const;

  struct Host {
    std::string name;
    std::string address;
    std::vector<int> ranks;
  };
  // `token` distinguishes runs.
  void Join(uint64_t token, const std::vector<Host>& others);

  // Sends the status files of `folder` and receives what has arrived. `now` is in seconds. Returns
  // true once every rank of the other hosts has been heard of.
  bool Exchange(const std::string& folder, double now);

  // Returns the last known status of each rank on the other hosts that have been heard of.
  std::vector<RankStatus> statuses() const;
  // Returns a host that was heard of before but not in the last `seconds`, or "" if there is none.
  std::string Silent(double now, double seconds) const;

 private:
  struct Other {
    Host host;
    std::vector<sockaddr_in> addresses;
    double heard = -1;  // -1: never
    std::vector<RankStatus> statuses;
  };
  int socket_ = -1;
  uint64_t token_ = 0;
  std::vector<Other> others_;
};

}  // namespace pipewright
