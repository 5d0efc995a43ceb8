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

VisibleDevices DevicesOfRank(const std::string& host, const std::string& visible, int count,
                             const std::function<std::string(int)>& bus_id) {
  VisibleDevices found;
  found.host = host;
  if (visible.find("MIG") != std::string::npos) found.parts = visible;
  for (int i = 0; i < count; ++i) {
    const std::string id = bus_id(i);
    found.ids.push_back(id.empty() ? "number " + std::to_string(i) + " of " + visible : id);
  }
  return found;
}

std::vector<VisibleDevices> DevicesOfRanks(Transport& transport) {
  const std::vector<std::string>& hosts = transport.hosts();
  const char* text = std::getenv("CUDA_VISIBLE_DEVICES");
  const VisibleDevices mine =
      DevicesOfRank(hosts.empty() ? "" : hosts[static_cast<size_t>(transport.rank())],
                    text ? text : "all", AcceleratorsHere().count, CudaBusId);
  std::vector<VisibleDevices> all;
  for (const std::string& of_rank :
       transport.AllGather(Json::array({mine.host, mine.parts, mine.ids}).dump())) {
    const Json read = Json::parse(of_rank);
    all.push_back({read[0].get<std::string>(), read[1].get<std::string>(),
                   read[2].get<std::vector<std::string>>()});
  }
  return all;
}

std::string DeviceId(const VisibleDevices& visible, const std::string& device) {
  const size_t colon = device.find(':');
  if (colon == std::string::npos) return visible.host + " " + device;
  const size_t number = static_cast<size_t>(std::stoi(device.substr(colon + 1)));
  return visible.host + " " + device.substr(0, colon) + " " +
         (number < visible.ids.size() ? visible.ids[number] : device);
}

static bool WantsDevice(const AskedDevice& asked) {
  return !asked.name.empty() && asked.name != "cpu";
}

PlaceOnHost PlaceOf(size_t rank, const std::vector<VisibleDevices>& visible,
                    const std::vector<AskedDevice>& asked) {
  PlaceOnHost place{0, 0};
  for (size_t r = 0; r < visible.size(); ++r) {
    if (!(visible[r] == visible[rank]) || !WantsDevice(asked[r])) continue;
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
               "start fewer ranks on the host, allow it with --share-devices, or name the device "
               "of each rank in the conf (rank_to_device_map) instead");
}

// Returns true for a device that some LibTorch may have: "TYPE" or "TYPE:NUMBER".
static bool IsDeviceName(const std::string& name) {
  const size_t colon = name.find(':');
  const std::string type = name.substr(0, colon);
  const std::string number = colon == std::string::npos ? "0" : name.substr(colon + 1);
  if (number.empty() || number.size() > 3 ||
      number.find_first_not_of("0123456789") != std::string::npos)
    return false;
  try {
    return c10::Device(type).type() != c10::DeviceType::CPU;
  } catch (const c10::Error&) {
    return false;
  }
}

static Error Absent(const AskedDevice& asked, const Accelerators& accelerators) {
  const std::string what = "there is no device " + Quote(asked.name) + ": " + Present(accelerators);
  const std::string& type = accelerators.type;
  if (type.empty())
    return Error(asked.where, what,
                 "build with a LibTorch for it (CMAKE_PREFIX_PATH), or run on the CPU: \"cpu\"");
  if (accelerators.count == 0)
    return Error(asked.where, what,
                 "look for the driver (nvidia-smi) and at CUDA_VISIBLE_DEVICES, let a container "
                 "see devices (docker run --gpus all), or run on the CPU: \"cpu\"");
  if (accelerators.count == 1) return Error(asked.where, what, "it is " + type + ":0");
  return Error(asked.where, what,
               "they are " + type + ":0 to " + type + ":" + std::to_string(accelerators.count - 1));
}

std::string ChooseDevice(const AskedDevice& asked, const PlaceOnHost& place,
                         const Accelerators& accelerators, bool share) {
  const bool automatic = asked.name == "auto";
  if (asked.name.empty() || asked.name == "cpu" || (automatic && accelerators.count == 0))
    return "cpu";
  const std::string& type = accelerators.type;
  const size_t colon = asked.name.find(':');
  if (!automatic && !IsDeviceName(asked.name))
    throw Error(asked.where, Quote(asked.name) + " is not a device",
                "give cpu, auto, a type such as cuda, or one device such as cuda:0");
  if (!automatic && (accelerators.count == 0 || asked.name.substr(0, colon) != type))
    throw Absent(asked, accelerators);
  if (colon == std::string::npos) {
    if (place.count > accelerators.count && !share)
      throw Shared(asked, place, Counted(accelerators.count, type + " device"));
    return type + ":" + std::to_string(place.local % accelerators.count);
  }
  const int number = std::stoi(asked.name.substr(colon + 1));
  if (number >= accelerators.count) throw Absent(asked, accelerators);
  if (place.count > 1 && !asked.own && !share) throw Shared(asked, place, asked.name);
  return type + ":" + std::to_string(number);
}

void UseDevice(c10::Device device) {
  if (!device.is_cpu()) at::accelerator::setDeviceIndex(device.index());
}

void UseTf32(bool allowed) {
  at::globalContext().setAllowTF32CuBLAS(allowed);
  at::globalContext().setAllowTF32CuDNN(allowed);
}

}  // namespace pipewright
