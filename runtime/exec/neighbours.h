// The status of ranks on other hosts. One process of each host sends what those of its host are at
// to one of each other host, once a second, over UDP: what is lost comes again.
#pragma once
#include <netinet/in.h>

#include <cstdint>
#include <string>
#include <vector>

#include "runtime/exec/status.h"

namespace pipewright {

class Neighbours {
 public:
  // Throws Error when there is no socket to be had.
  Neighbours();
  ~Neighbours();
  Neighbours(const Neighbours&) = delete;

  // Where this one is reached: "PORT ADDRESS ADDRESS", one address for each network (IPv4).
  std::string address() const;

  struct Host {
    std::string name;
    std::string address;
    std::vector<int> ranks;
  };
  // `token` tells runs apart.
  void Join(uint64_t token, const std::vector<Host>& others);

  // Sends the status files of `folder` and takes what has come. `now` in seconds. Returns whether
  // every rank of the other hosts has been heard of by now.
  bool Exchange(const std::string& folder, double now);

  // The last known status of each rank of the other hosts that have been heard of.
  std::vector<RankStatus> statuses() const;
  // A host heard of before, but not in the last `seconds`; "": there is none.
  std::string Silent(double now, double seconds) const;

 private:
  struct Other {
    Host host;
    std::vector<sockaddr_in> addresses;
    double heard = -1;  // never
    std::vector<RankStatus> statuses;
  };
  int socket_ = -1;
  uint64_t token_ = 0;
  std::vector<Other> others_;
};

}  // namespace pipewright
