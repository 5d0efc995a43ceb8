// Chooses the device on which a rank computes: the CPU or one of the host's accelerators, which
// LibTorch calls "cuda", for example. Without a wish a rank computes on the CPU.
#pragma once
#include <c10/core/Device.h>

#include <cstddef>
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

// Returns what tells apart the devices that ranks see, by rank: their hosts (Transport::hosts;
// empty: all ranks are on one), and the devices that a launcher has made visible to each
// (CUDA_VISIBLE_DEVICES). Two ranks for which it is equal mean the same device by the same name.
// Collective.
std::vector<std::string> VisibleDevices(Transport& transport);

// The ranks that see the same devices and want one, of which this is number `local` of `count`,
// from 0.
struct PlaceOnHost {
  int local = 0, count = 1;
};
PlaceOnHost PlaceOf(size_t rank, const std::vector<std::string>& visible,
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
