#include "plan/partition/io/request.h"

#include <algorithm>
#include <charconv>
#include <filesystem>

#include "base/error.h"
#include "base/files/read_file.h"
#include "base/process/messages.h"
#include "base/size.h"
#include "base/text.h"
#include "formats/profile/graph.h"
#include "plan/partition/io/measured_links.h"
#include "plan/partition/pipedream/tarnawski.h"

namespace pipewright {

constexpr size_t kUnknownDevices = 16;  // limit if the number is not given

static double Bytes(const std::string& text, const std::string& option) {
  double value = 0;
  auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error == std::errc() && end == text.data() + text.size()) {
    if (!(value >= 0)) throw UsageError(option, "a size of at least 0 is expected, not " + text);
    return value;
  }
  return static_cast<double>(ParseSize(text, option));
}

// Calls `link` for each ordered pair of devices. Both directions get the bandwidth of the slower
// one, which is the one that counts.
template <typename F>
static void SetPairLinks(PartitionProblem& problem, size_t count, const F& link) {
  problem.pair_links.assign(count, std::vector<double>(count, 1));
  for (size_t a = 0; a < count; ++a)
    for (size_t b = 0; b < a; ++b) {
      const double slower = std::min(link(a, b), link(b, a));
      if (!(slower > 0))
        throw UsageError("--links", "bandwidths above 0 are expected between devices");
      problem.pair_links[a][b] = problem.pair_links[b][a] = slower;
    }
}

// Removes pair links that are all equal, because searches prove more about links of devices.
static void DropEqualPairLinks(PartitionProblem& problem) {
  for (size_t a = 0; a < problem.pair_links.size(); ++a)
    for (size_t b = 0; b < a; ++b)
      if (problem.pair_links[a][b] != problem.pair_links[1][0]) return;
  problem.pair_links.clear();
}

static double BestLink(const PartitionProblem& problem, int device) {
  double best = 0;
  for (size_t other = 0; other < problem.pair_links.size(); ++other)
    if (static_cast<int>(other) != device)
      best = std::max({best, problem.pair_links[device][other], problem.pair_links[other][device]});
  return best;
}

// Makes one class per kind of device; the counts for a profile come from the command line.
static void SetDevices(PartitionProblem& problem, const PartitionRequest& request,
                       const Profile& profile) {
  int devices = request.devices;
  if (devices < 0 && !request.machines.empty()) {
    devices = 1;
    for (int machines : request.machines) devices *= machines;
  }
  bool own = !problem.devices.empty();
  if (!own) {
    if (devices < 0) devices = request.stages;
    for (size_t size : {request.speeds.size(), request.links.size(), request.memories.size()})
      if (devices < 0 && size > 0) devices = static_cast<int>(size);
    if (devices < 0)
      for (const ProfileLink& link : profile.links)  // between the measured ranks
        devices = std::max({devices, link.from + 1, link.to + 1});
    if (devices < 0) {
      devices = static_cast<int>(std::min<size_t>(problem.nodes.size(), kUnknownDevices));
      PrintNote("neither --stages nor --devices is given: up to " + std::to_string(devices) +
                " devices");
    }
    DeviceClass gpu, cpu;
    gpu.count = devices;
    cpu.name = "cpu";
    cpu.host = true;
    cpu.count = 0;
    problem.devices = {gpu, cpu};
  }
  DeviceClass gpu = problem.devices[0], cpu = problem.devices[1];
  if (devices >= 0) gpu.count = devices;
  if (request.cpus >= 0) cpu.count = request.cpus;
  if (!request.memory.empty()) gpu.memory_bytes = Bytes(request.memory, "--memory");
  auto one_each = [&](size_t size, const char* option) {
    if (size > 0 && static_cast<int>(size) != gpu.count)
      throw UsageError(option, "one number per device is expected: " + std::to_string(gpu.count) +
                                   ", not " + std::to_string(size));
  };
  one_each(request.speeds.size(), "--speeds");
  size_t count = static_cast<size_t>(gpu.count);
  bool pairs = count > 1 && request.links.size() == count * count;
  if (!pairs) one_each(request.links.size(), "--links");
  if (pairs)
    SetPairLinks(problem, count, [&](size_t a, size_t b) { return request.links[a * count + b]; });
  one_each(request.memories.size(), "--memories");
  problem.devices.clear();
  for (int d = 0; d < gpu.count; ++d) {
    DeviceClass device = gpu;
    device.count = 1;
    device.numbers = {d};
    if (!request.speeds.empty()) device.speed = request.speeds[d];
    if (!request.links.empty() && !pairs) device.link = request.links[d];
    if (!problem.pair_links.empty()) device.link = BestLink(problem, d);
    if (!request.memories.empty()) device.memory_bytes = Bytes(request.memories[d], "--memories");
    if (!(device.speed > 0) || !(device.link > 0))
      throw UsageError("--speeds", "speeds and links above 0 are expected");
    bool found = false;
    for (DeviceClass& known : problem.devices)
      if (known.speed == device.speed && known.link == device.link &&
          known.memory_bytes == device.memory_bytes) {
        ++known.count;
        known.numbers.push_back(d);
        found = true;
      }
    if (!found) problem.devices.push_back(device);
  }
  problem.devices.push_back(cpu);
  DropEqualPairLinks(problem);
}

static int FindNode(const PartitionProblem& problem, const std::string& name,
                    const std::string& option) {
  std::vector<std::string> names;
  for (size_t i = 0; i < problem.nodes.size(); ++i) {
    if (problem.nodes[i].name == name) return static_cast<int>(i);
    names.push_back(problem.nodes[i].name);
  }
  throw UsageError(option, "there is no node \"" + name + "\"" + Suggest(name, names));
}

// --together a,b keeps nodes in one stage. --shared a,b charges for the gradient exchange of a
// weight that both use, if they are in different stages.
static void SetGroups(PartitionProblem& problem, const PartitionRequest& request) {
  int next = 0;
  for (const PartitionNode& node : problem.nodes) next = std::max(next, node.group + 1);
  for (const std::string& list : request.together) {
    int group = next++;
    for (const std::string& name : Split(list, ',')) {
      int node = FindNode(problem, name, "--together"), old = problem.nodes[node].group;
      problem.nodes[node].group = group;
      for (PartitionNode& other : problem.nodes)
        if (old >= 0 && other.group == old) other.group = group;
    }
  }
  for (const std::string& list : request.shared) {
    PartitionValue value;
    double bytes = 0;
    for (const std::string& name : Split(list, ',')) {
      value.consumers.push_back(FindNode(problem, name, "--shared"));
      bytes = std::max(bytes, problem.nodes[value.consumers.back()].parameter_bytes);
    }
    value.time = 2 * bytes * problem.exchange_time;
    value.transfers = 2;
    problem.values.push_back(value);
  }
}

PipeDreamOptions UpstreamOptions(const PartitionRequest& request) {
  PipeDreamOptions options;
  options.machines = request.machines;
  if (options.machines.empty() && request.devices > 0) options.machines = {request.devices};
  if (options.machines.empty() && request.stages > 0) options.machines = {request.stages};
  if (options.machines.empty())
    throw UsageError("-n", "the number of machines is expected", "-n 4, or -n 4 2 for two levels");
  options.bandwidths = request.bandwidths;
  if (options.bandwidths.empty()) options.bandwidths.assign(options.machines.size(), 1e9);
  options.memory_bytes =
      request.memory.empty() ? request.pipedream_memory : Bytes(request.memory, "--memory");
  options.straight_pipeline = request.straight_pipeline;
  options.use_memory_constraint = request.use_memory_constraint;
  options.use_fewer_machines = request.use_fewer_machines;
  if (request.activation_compression_ratio != 0)
    options.activation_compression_ratio = request.activation_compression_ratio;
  return options;
}

static bool IsMeasured(const PartitionRequest& request) {
  return std::filesystem::exists(request.file + "/profile.json") && request.microbatch == 0 &&
         request.input.empty();
}

bool NeedsMeasuring(const PartitionRequest& request) {
  return std::filesystem::is_directory(request.file) && !IsMeasured(request);
}

PartitionInput ReadPartitionInput(const PartitionRequest& request, const Profile* measured) {
  PartitionInput input;
  const std::string& file = request.file;
  if (std::filesystem::is_directory(file)) {
    Manifest manifest = ReadManifest(file);
    std::string path = file + "/profile.json";
    input.profile = measured ? *measured : ParseProfile(ReadFile(path), path);
    CheckProfile(input.profile, manifest, path);
    input.kind = PartitionInput::kProfile;
  } else {
    std::string text = ReadFile(file);
    if (request.microbatch != 0 || !request.input.empty())
      throw UsageError(request.input.empty() ? "--microbatch-size" : "--input",
                       "is for measuring a package, and " + file + " is a file",
                       "leave it out, or name the package");
    if (LooksLikeGraphText(text)) {
      input.graph = ReadGraphText(text, file);
      return input;
    }
    if (text.starts_with("PK\3\4"))
      throw Error(file, "is a model, not a profile or a package",
                  "compile it first: pipewright compile " + file + " -o FOLDER");
    input.instance = ParseJson(text, file);
    input.kind = PartitionInput::kTarnawski;
    if (IsTarnawski(input.instance)) return input;
    if (!IsProfile(input.instance))
      throw Error(file + ":" + JsonPosition(text, {}),
                  "is neither graph text, nor a profile, nor an instance of Tarnawski et al.");
    input.profile = ParseProfile(text, file);
    input.kind = PartitionInput::kProfile;
  }
  input.graph = GraphOfProfile(input.profile);
  for (const ProfileNode& node : input.profile.nodes)
    input.modules = std::max(input.modules, node.module + 1);
  return input;
}

static ProfileCosts CostsOf(const PartitionInput& input, const PartitionRequest& request) {
  ProfileCosts costs;
  costs.optimizer_state = request.optimizer_state;
  if (!input.profile.links.empty()) {
    const MeasuredLinks measured = FiguresOf(input.profile.links);
    costs.bandwidth = measured.bandwidth;
    costs.latency = measured.latency;
  }
  if (!request.bandwidths.empty()) costs.bandwidth = request.bandwidths.back();
  if (!(costs.bandwidth > 0)) throw UsageError("-b", "a bandwidth above 0 is expected");
  if (request.latency >= 0) costs.latency = request.latency;
  return costs;
}

// With measured links between exactly as many ranks as devices, each pair has its own link, unless
// all pairs are alike.
static void UseMeasuredLinks(PartitionProblem& problem, const Profile& profile) {
  if (profile.links.empty()) return;
  const MeasuredLinks measured = FiguresOf(profile.links);
  size_t count = 0;
  for (const DeviceClass& device : problem.devices)
    count += device.host ? 0 : static_cast<size_t>(device.count);
  if (measured.pairs.empty() || measured.pairs.size() != count) return;
  SetPairLinks(problem, count,
               [&](size_t a, size_t b) { return measured.pairs[a][b] / measured.bandwidth; });
  for (DeviceClass& device : problem.devices) {
    if (device.host) continue;
    device.link = 0;
    for (int number : device.numbers)
      device.link = std::max(device.link, BestLink(problem, number));
  }
}

PartitionProblem MakeProblem(const PartitionInput& input, const PartitionRequest& request,
                             ProfileProblem& profile) {
  PartitionProblem problem;
  if (input.kind == PartitionInput::kTarnawski) {
    problem = ReadTarnawski(input.instance, request.file);
    problem.transfer_latency = std::max(request.latency, 0.0);
  } else {
    ProfileCosts costs = CostsOf(input, request);
    profile = input.kind == PartitionInput::kProfile ? ToProblem(input.profile, costs)
                                                     : ToProblem(input.graph, costs);
    problem = profile.problem;
    const std::string held = request.in_flight.empty() ? request.schedule : request.in_flight;
    problem.in_flight = OrderOf(held) == ScheduleOrder::kForwardsFirst ? InFlight::kGPipe
                        : held == kOneInFlight                         ? InFlight::kOne
                                                                       : InFlight::k1F1B;
    problem.microbatches = request.microbatches;
    if (problem.in_flight == InFlight::kGPipe && request.microbatches == 1 << 30)
      throw UsageError("--microbatches", "gpipe holds all microbatches: say how many");
  }
  problem.stages = request.stages;
  problem.max_replicas = request.replicas;
  SetDevices(problem, request, input.profile);
  SetGroups(problem, request);
  if (request.links.empty() && request.bandwidths.empty()) UseMeasuredLinks(problem, input.profile);
  return problem;
}

}  // namespace pipewright
