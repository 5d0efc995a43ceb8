// Chooses the device on which a rank computes: the CPU or one of the host's accelerators, which
// LibTorch calls "cuda", for example. Without a wish a rank computes on the CPU.
#pragma once
#include <c10/core/Device.h>

#include <cstddef>
#include <functional>
#include <string>
#include <vector>

#include "runtime/exec/transport.h"

namespace pipewright {

// The accelerators that LibTorch sees on this host. All are of one type.
struct Accelerators {
  std::string type;  // "cuda"; empty: LibTorch was built without any
  int count = 0;
};
Accelerators AcceleratorsHere();

// The device that a rank was asked to use.
struct AskedDevice {
  std::string name;   // "", "cpu", "auto", a type such as "cuda", or one device such as "cuda:1"
  std::string where;  // "--device", or the file and key, for messages
  bool own = false;   // it was given to this rank by name, not to all ranks
};

// The devices that a rank sees. Two ranks for which it is equal mean the same device by the same
// name. A launcher may show each rank other devices under the same numbers (cgroups).
struct VisibleDevices {
  std::string host;              // of Transport::hosts; "": all ranks are on one
  std::string parts;             // CUDA_VISIBLE_DEVICES if it names parts of GPUs (MIG)
  std::vector<std::string> ids;  // by number: the bus id, or what is known of the device instead
  bool operator==(const VisibleDevices&) const = default;
};

// Returns those of this rank. `visible`: CUDA_VISIBLE_DEVICES, or "all".
VisibleDevices DevicesOfRank(const std::string& host, const std::string& visible, int count,
                             const std::function<std::string(int)>& bus_id);
// Returns those of every rank. Collective.
std::vector<VisibleDevices> DevicesOfRanks(Transport& transport);

// Returns a text that is the same for two ranks if they compute on one GPU. `device`: "cuda:1".
std::string DeviceId(const VisibleDevices& visible, const std::string& device);

// The ranks that see the same devices and want one, of which this is number `local` of `count`,
// from 0.
struct PlaceOnHost {
  int local = 0, count = 1;
};
PlaceOnHost PlaceOf(size_t rank, const std::vector<VisibleDevices>& visible,
                    const std::vector<AskedDevice>& asked);

// Returns the name of the rank's device, "cpu" or "cuda:1". A rank that may choose takes the device
// with its number on the host. Throws Error if the device is not there, or if it would have to be
// shared with another rank of the host and `share` is false.
std::string ChooseDevice(const AskedDevice& asked, const PlaceOnHost& place,
                         const Accelerators& accelerators, bool share);

// Makes the device the current one of this thread.
void UseDevice(c10::Device device);

// Lets products of float32 matrices and convolutions on CUDA round their factors to TF32, which has
// 10 bits after the binary point. LibTorch would do so in convolutions unless it is told not to.
void UseTf32(bool allowed);

}  // namespace pipewright
