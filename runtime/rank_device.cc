#include "runtime/rank_device.h"

#include <ATen/Context.h>
#include <ATen/DeviceAccelerator.h>

#include <algorithm>
#include <cstdlib>

#include "base/error.h"
#include "base/json.h"
#include "base/text.h"
#include "runtime/nccl/cuda_environment.h"

namespace pipewright {

Accelerators AcceleratorsHere() {
  SetCudaEnvironment();  // for programs that have not done so
  const auto type = at::getAccelerator(/*checked=*/false);
  if (!type) return {};
  return {c10::DeviceTypeName(*type, /*lower_case=*/true), at::accelerator::deviceCount()};
}

std::vector<std::string> VisibleDevices(Transport& transport) {
  const char* mine = std::getenv("CUDA_VISIBLE_DEVICES");
  std::vector<std::string> visible = transport.AllGather(mine ? mine : "all");
  for (size_t r = 0; r < visible.size() && !transport.hosts().empty(); ++r)
    visible[r] = transport.hosts()[r] + " " + visible[r];
  return visible;
}

static bool WantsDevice(const AskedDevice& asked) {
  return !asked.name.empty() && asked.name != "cpu";
}

PlaceOnHost PlaceOf(size_t rank, const std::vector<std::string>& visible,
                    const std::vector<AskedDevice>& asked) {
  PlaceOnHost place{0, 0};
  for (size_t r = 0; r < visible.size(); ++r) {
    if (visible[r] != visible[rank] || !WantsDevice(asked[r])) continue;
    ++place.count;
    if (r < rank) ++place.local;
  }
  return place;
}

static std::string Present(const Accelerators& accelerators) {
  if (accelerators.type.empty()) return "this LibTorch was built for CPUs only";
  return "this host has " + (accelerators.count == 0 ? "no" : std::to_string(accelerators.count)) +
         " " + accelerators.type + " " + (accelerators.count == 1 ? "device" : "devices");
}

static Error Shared(const AskedDevice& asked, const PlaceOnHost& place, const std::string& what) {
  return Error(asked.where, Counted(place.count, "rank") + " of this host would share " + what,
               "start fewer ranks on the host, name the device of each rank in the conf "
               "(rank_to_device_map), or allow it with --share-devices");
}

std::string ChooseDevice(const AskedDevice& asked, const PlaceOnHost& place,
                         const Accelerators& accelerators, bool share) {
  const bool automatic = asked.name == "auto";
  if (asked.name.empty() || asked.name == "cpu" || (automatic && accelerators.count == 0))
    return "cpu";
  const std::string& type = accelerators.type;
  const size_t colon = asked.name.find(':');
  if (!automatic && (accelerators.count == 0 || asked.name.substr(0, colon) != type))
    throw Error(asked.where,
                "there is no device " + Quote(asked.name) + ": " + Present(accelerators),
                type.empty() ? "build with a LibTorch for it (CMAKE_PREFIX_PATH), or run on the "
                               "CPU: \"cpu\""
                             : "known here: cpu, auto, " + type + ", " + type + ":0, ...");
  if (colon == std::string::npos) {
    if (place.count > accelerators.count && !share)
      throw Shared(asked, place, Counted(accelerators.count, type + " device"));
    return type + ":" + std::to_string(place.local % accelerators.count);
  }
  const std::string number = asked.name.substr(colon + 1);
  const bool digits = !number.empty() && number.size() < 4 &&
                      number.find_first_not_of("0123456789") == std::string::npos;
  if (!digits || std::stoi(number) >= accelerators.count)
    throw Error(
        asked.where, "there is no device " + Quote(asked.name) + ": " + Present(accelerators),
        "they are " + type + ":0 to " + type + ":" + std::to_string(accelerators.count - 1));
  if (place.count > 1 && !asked.own && !share) throw Shared(asked, place, asked.name);
  return type + ":" + std::to_string(std::stoi(number));
}

void UseDevice(c10::Device device) {
  if (!device.is_cpu()) at::accelerator::setDeviceIndex(device.index());
}

void UseTf32(bool allowed) {
  at::globalContext().setAllowTF32CuBLAS(allowed);
  at::globalContext().setAllowTF32CuDNN(allowed);
}

}  // namespace pipewright
