#include "tune/job/machines.h"

#include <algorithm>

#include "base/error.h"
#include "base/files/read_file.h"
#include "base/size.h"
#include "base/text.h"
#include "formats/job_section.h"

namespace pipewright {

namespace {

constexpr size_t kMostDevices = 1 << 16;  // as many as ranks

struct Device {
  double speed = 1, memory = kNoLimit, overlap = 1;
};

// Throws Error unless `in` is an object with these keys only.
void CheckObject(const Json& in, const std::string& where, const std::vector<std::string>& keys) {
  if (!in.is_object()) throw Error(where, "an object is expected, not " + in.dump());
  for (const auto& [key, value] : in.items())
    if (std::find(keys.begin(), keys.end(), key) == keys.end())
      throw Error(where, "unknown key \"" + key + "\"", "the keys are " + Join(keys, ", "));
}

const Json& At(const Json& in, const char* key, const std::string& where) {
  if (!in.contains(key)) throw Error(where, "\"" + std::string(key) + "\" is missing");
  return in[key];
}

double Positive(const Json& in, const char* key, const std::string& where) {
  double number = 0;
  At(in, key, where);
  Section{in, where}.Get(key, number);
  if (!(number > 0)) throw Error(where + "." + key, "a number above 0 is expected");
  return number;
}

Device ReadDevice(const Json& in, const std::string& where) {
  CheckObject(in, where, {"speed", "memory", "overlap"});
  Device device;
  device.speed = Positive(in, "speed", where);
  if (in.contains("overlap")) device.overlap = Positive(in, "overlap", where);
  if (device.overlap > 1)
    throw Error(where + ".overlap",
                "a share of at most 1 is expected, not " + in["overlap"].dump());
  if (in.contains("memory")) {
    const Json& memory = in["memory"];
    if (!memory.is_string() && !memory.is_number_integer())
      throw Error(where + ".memory", "a size is expected, \"80GB\" or bytes");
    device.memory = static_cast<double>(ParseSize(
        memory.is_string() ? memory.get<std::string>() : memory.dump(), where + ".memory"));
  }
  return device;
}

ProfileLink ReadLink(const Json& in, const std::string& where) {
  CheckObject(in, where, {"latency", "bandwidth"});
  ProfileLink link;
  Section{in, where}.Range("latency", 0, kAnyNumber, link.latency);
  link.bytes_per_second = Positive(in, "bandwidth", where);
  return link;
}

// An entry of the list of machines: `count` machines, each with so many devices.
struct Entry {
  size_t number = 0;  // in the list
  Device device;
  int devices = 1, count = 1;
  ProfileLink link;
};

Entry ReadEntry(const Json& in, const std::string& where,
                const std::map<std::string, Device>& devices, const ProfileLink& between) {
  CheckObject(in, where, {"device", "devices", "link", "count"});
  std::string name;
  At(in, "device", where);
  Section{in, where}.Get("device", name);
  if (!devices.count(name))
    throw Error(where + ".device", "\"" + name + "\" is not among \"devices\"");
  Entry entry;
  entry.device = devices.at(name);
  Section{in, where}.AtLeast("devices", 1, entry.devices, 1 << 16);
  Section{in, where}.AtLeast("count", 1, entry.count, 1 << 16);
  entry.link = in.contains("link") ? ReadLink(in["link"], where + ".link") : between;
  return entry;
}

void AddMachines(const Entry& entry, TuneMachines& machines) {
  machines.order.push_back(entry.number);
  for (int m = 0; m < entry.count && machines.speeds.size() < kMostDevices; ++m) {
    const int number = static_cast<int>(machines.within.size());
    machines.within.push_back(entry.link);
    for (int d = 0; d < entry.devices && machines.speeds.size() < kMostDevices; ++d) {
      machines.speeds.push_back(entry.device.speed);
      machines.memory.push_back(entry.device.memory);
      machines.overlap.push_back(entry.device.overlap);
      machines.machine.push_back(number);
    }
  }
}

}  // namespace

TuneMachines ReadMachines(const std::string& path, int ranks) {
  const Json file = ReadJson(path);
  CheckObject(file, path, {"$schema", "devices", "machines", "link"});
  std::map<std::string, Device> devices;
  const std::string in_devices = path + ": devices", in_machines = path + ": machines";
  const Json& kinds = At(file, "devices", path);
  if (!kinds.is_object()) throw Error(in_devices, "an object is expected, not " + kinds.dump());
  for (const auto& [name, device] : kinds.items())
    devices[name] = ReadDevice(device, in_devices + "." + name);
  TuneMachines machines;
  machines.between = ReadLink(At(file, "link", path), path + ": link");
  const Json& list = At(file, "machines", path);
  if (!list.is_array()) throw Error(in_machines, "a list is expected, not " + list.dump());
  std::vector<Entry> entries;
  for (size_t i = 0; i < list.size(); ++i) {
    entries.push_back(
        ReadEntry(list[i], in_machines + "[" + std::to_string(i) + "]", devices, machines.between));
    entries.back().number = i;
  }
  std::stable_sort(entries.begin(), entries.end(),
                   [](const Entry& a, const Entry& b) { return a.device.speed > b.device.speed; });
  for (const Entry& entry : entries) AddMachines(entry, machines);
  if (static_cast<int>(machines.speeds.size()) < ranks)
    throw Error(path,
                "has " + Counted(machines.speeds.size(), "device") + ", fewer than --ranks " +
                    std::to_string(ranks),
                "describe more machines, or give fewer ranks");
  return machines;
}

}  // namespace pipewright
