#include "runtime/measure/profile.h"

#include <ATen/ATen.h>
#include <ATen/Parallel.h>

#include <algorithm>
#include <cstdio>
#include <deque>
#include <map>

#include "base/error.h"
#include "base/process/messages.h"
#include "base/text.h"
#include "formats/conf.h"
#include "formats/job.h"
#include "formats/optimizer_job.h"
#include "formats/profile/merge.h"
#include "runtime/cpu/matmul.h"
#include "runtime/exec/clock.h"
#include "runtime/exec/phase.h"
#include "runtime/links/nccl_transport.h"
#include "runtime/measure/links.h"
#include "runtime/measure/memory_meter.h"
#include "runtime/measure/module_parts.h"
#include "runtime/measure/module_times.h"
#include "runtime/measure/samples.h"
#include "runtime/module/messages.h"
#include "runtime/rank_device.h"
#include "runtime/recorded/choose_body.h"
#include "runtime/stage/island.h"
#include "tensors/device_memory.h"
#include "tensors/dtype.h"

namespace pipewright {

namespace {

using Values = std::map<int, c10::IValue>;

double BytesOf(const c10::IValue& value) {
  if (value.isNone()) return 0;
  return value.isTensor() ? static_cast<double>(value.toTensor().nbytes()) : 8;
}

constexpr int kMostDimensions = 62;
constexpr int kLinkRounds = 20;
constexpr size_t kLinkBytes = size_t{4} << 20;
constexpr int kMostTimes = 4;  // limit on repeating the requested rounds if they are noisy

// Sends a tensor, preceded by its type and sizes, which may depend on the data.
void SendValue(Transport& transport, int to, const c10::IValue& value) {
  if (value.isNone()) return;
  at::Tensor tensor = OnHost(ToTensor(value));
  at::Tensor header = at::zeros({kMostDimensions + 2}, at::kLong);
  int64_t* numbers = header.mutable_data_ptr<int64_t>();
  numbers[0] = static_cast<int64_t>(tensor.scalar_type());
  numbers[1] = tensor.dim();
  for (int64_t d = 0; d < tensor.dim(); ++d) numbers[2 + d] = tensor.size(d);
  const Awaited leaves{.kind = Awaited::kTensor, .rank = to, .sends = 1};
  transport.WaitFor(transport.Send(to, 0, MakeBundle({header})), leaves);
  transport.WaitFor(transport.Send(to, 0, MakeMessage({tensor})), leaves);
}

c10::IValue ReceiveValue(Transport& transport, int from, const ValueInfo& info,
                         c10::Device device) {
  if (info.kind == ValueKind::kNone) return {};
  at::Tensor header = at::zeros({kMostDimensions + 2}, at::kLong);
  transport.WaitFor(transport.Recv(from, 0, MakeBundle({header})), {Awaited::kTensor, from});
  const int64_t* numbers = header.const_data_ptr<int64_t>();
  at::Tensor tensor = at::empty(at::IntArrayRef(numbers + 2, static_cast<size_t>(numbers[1])),
                                static_cast<at::ScalarType>(numbers[0]));
  const Bundle message = MakeMessage({tensor});
  transport.WaitFor(transport.Recv(from, 0, message), {Awaited::kTensor, from});
  const bool tensor_value = info.kind == ValueKind::kTensor;
  return FromTensor(ReadMessage(message, tensor_value ? device : at::kCPU)[0], info);
}

// Chooses the device of every rank, as a run does. Collective.
std::vector<std::string> ChooseDevices(const ProfileOptions& options, Transport& transport,
                                       const std::vector<VisibleDevices>& visible) {
  std::string mine;
  Phase(transport, "choosing devices", [&] {
    const AskedDevice asked{options.device, "--device"};
    const PlaceOnHost place = PlaceOf(static_cast<size_t>(transport.rank()), visible,
                                      std::vector<AskedDevice>(visible.size(), asked));
    mine = ChooseDevice(asked, place, AcceleratorsHere(), options.share_devices);
    UseDevice(c10::Device(mine));
    UseTf32(false);
  });
  return transport.AllGather(mine);
}

ProfileTime TimeOf(const Timing& timing) { return {timing.median, timing.high - timing.low}; }

void SetTimes(const ModuleTimes& times, ProfileNode& node) {
  node.forward = TimeOf(times.forward);
  node.backward = TimeOf(times.backward);
  node.input_gradient = TimeOf(times.input_grad);
  node.weight_gradient = TimeOf(times.weight_grad);
}

void Insert(int value, std::vector<int>& sorted) {
  const auto at = std::lower_bound(sorted.begin(), sorted.end(), value);
  if (at == sorted.end() || *at != value) sorted.insert(at, value);
}

bool HasNoise(const ProfileNode& node) {
  for (const ProfileTime* time :
       {&node.forward, &node.backward, &node.input_gradient, &node.weight_gradient})
    if (IsNoisy(time->median, time->spread)) return true;
  return false;
}

ProfileNode NodeOf(const ModuleTimes& times, const ModuleInfo& info,
                   const std::vector<size_t>& held, const LoadedModule& module,
                   const std::vector<c10::IValue>& inputs) {
  ProfileNode node;
  node.kept = static_cast<double>(times.activation_bytes);
  node.kept_for_weight = static_cast<double>(times.kept_for_weights_bytes);
  node.peak = static_cast<double>(times.peak_bytes);
  node.forward_only_peak = static_cast<double>(times.forward_only_bytes);
  for (const c10::IValue& input : inputs) {
    node.peak += BytesOf(input);
    node.forward_only_peak += BytesOf(input);
  }
  node.module = module.index;
  for (size_t w = 0; w < held.size(); ++w) {
    const WeightInfo& weight = info.held[held[w]];
    double bytes = static_cast<double>(module.weights[w].nbytes());
    (weight.kind == WeightKind::kParameter ? node.parameters : node.buffers) += bytes;
    if (weight.kind == WeightKind::kParameter && weight.requires_grad) node.trained += bytes;
    node.weights.push_back(weight.name);
  }
  node.peak += node.parameters + node.buffers;
  node.body = times.lists ? "lists" : "autograd";
  return node;
}

class Profiler {
 public:
  Profiler(const ProfileOptions& options, Transport& transport)
      : options_(options),
        transport_(transport),
        manifest_(ReadManifest(options.package)),
        visible_(DevicesOfRanks(transport)),
        devices_(ChooseDevices(options, transport, visible_)),
        device_(devices_[static_cast<size_t>(transport.rank())]),
        timer_(device_) {
    at::set_num_threads(options.threads);
    if (options.forward_only) UseMatMul(MatMul::kAuto, "--forward-only");
    if (!options.job.empty()) {
      job_ = ReadJob(options.job);
      Freeze(manifest_, job_.freeze, job_.path + ": freeze");
      UseMatMul(job_.matmul, job_.path + ": matmul");
    }
    rank_of_.assign(manifest_.modules.size(), 0);
    if (transport.size() > 1) PlaceModules();
  }

  Profile Run(std::string& source) {
    int64_t microbatch = options_.microbatch;
    std::vector<c10::IValue> samples =
        options_.input.empty() && !options_.job.empty()
            ? SamplesOfJob(options_.package, manifest_, job_, microbatch, source)
            : SampleInputs(options_.package, manifest_, options_.input, microbatch, source);
    Values values;
    for (size_t i = 0; i < samples.size(); ++i)
      values[manifest_.inputs[i]] =
          samples[i].isTensor() ? OnDevice(samples[i].toTensor(), device_) : samples[i];
    if (OnDevices() && transport_.rank() == 0) PrintNote(HostsText(devices_));
    Profile profile = Header(microbatch);
    for (int id : manifest_.inputs)
      profile.values.push_back({manifest_.values[id].name, -1, {}, BytesOf(values.at(id)), false});
    std::vector<Profile> mine(manifest_.modules.size());
    for (size_t m = 0; m < manifest_.modules.size(); ++m) {
      if (rank_of_[m] == transport_.rank()) mine[m] = MeasureOne(static_cast<int>(m), values);
      Exchange(static_cast<int>(m), values);
    }
    if (options_.forward_only)
      MeasureForwards(mine);
    else
      MeasureTimes(mine);
    for (size_t m = 0; m < mine.size(); ++m) {
      // Only the owner of a module has measured it.
      bool own = rank_of_[m] == transport_.rank();
      std::string text =
          transport_.AllGather(own ? WriteProfile(mine[m]) : "")[static_cast<size_t>(rank_of_[m])];
      AppendModule(profile, ParseProfile(text, manifest_.modules[m].name));
    }
    if (transport_.rank() == 0) WarnOfNoise(profile);
    ShareWeights(profile, manifest_);
    if (transport_.size() > 1) profile.links = Links();
    return profile;
  }

 private:
  void PlaceModules() {
    int modules = static_cast<int>(manifest_.modules.size());
    Conf conf = GroupModules(modules, std::min(modules, transport_.size()));
    std::string path =
        options_.conf.empty() ? options_.package + "/conf/mp_conf.json" : options_.conf;
    try {
      Conf read = ReadConf(path);
      CheckConf(read, modules, transport_.size(), ModuleEdges(manifest_), path);
      conf = read;
    } catch (const Error&) {  // the package's own conf may be for another number of ranks
      if (!options_.conf.empty()) throw;
    }
    for (size_t m = 0; m < rank_of_.size(); ++m)
      rank_of_[m] = conf.stage_to_ranks[conf.module_to_stage[m]][0];
  }

  bool OnDevices() const {
    return std::any_of(devices_.begin(), devices_.end(), [](const auto& d) { return d != "cpu"; });
  }

  // Returns true if values between two ranks travel over NCCL in a run.
  bool UsesNccl(size_t a, size_t b) const {
    const auto type = [&](size_t rank) {
      return devices_[rank].substr(0, devices_[rank].find(':'));
    };
    const bool wanted = options_.links == DeviceLinks::kNccl ||
                        (options_.links == DeviceLinks::kAuto && type(a) == "cuda");
    return wanted && devices_[a] != "cpu" && type(a) == type(b) &&
           DeviceId(visible_[a], devices_[a]) != DeviceId(visible_[b], devices_[b]);
  }

  // A communicator takes memory of the devices, so each exists only while its link is measured.
  std::vector<ProfileLink> Links() {
    if (!OnDevices()) return MeasureLinks(transport_);
    std::vector<ProfileLink> links;
    for (int from = 0; from < transport_.size(); ++from)
      for (int to = 0; to < transport_.size(); ++to) {
        if (from == to) continue;
        const bool nccl = UsesNccl(static_cast<size_t>(from), static_cast<size_t>(to));
        std::unique_ptr<NcclTransport> link;
        if (nccl)
          link =
              std::make_unique<NcclTransport>(transport_, device_, DevicePeers{{{from, to}}, {}});
        links.push_back(
            MeasureLink(nccl ? *link : transport_, from, to, kLinkRounds, kLinkBytes, device_));
      }
    return links;
  }

  double Longest(double mine) const {
    double longest = 0;
    for (const std::string& seconds : transport_.AllGather(std::to_string(mine)))
      longest = std::max(longest, std::stod(seconds));
    return longest;
  }

  // Measures on all ranks at once, because in a run they share caches and memory bandwidth. A rank
  // that is done goes on until all are. Repeats noisy measurements, up to kMostTimes times the
  // requested rounds.
  void MeasureTimes(std::vector<Profile>& mine) {
    double round = 0;
    for (int i = 0; i < std::max(options_.warm_up, 1); ++i) {
      const double start = Now();
      timer_.Round(false);
      round = Now() - start;
    }
    for (int times = 1; times <= kMostTimes; ++times) {
      const double seconds = Longest(round * options_.repeat), start = Now();
      const size_t wanted = static_cast<size_t>(options_.repeat) * static_cast<size_t>(times);
      while (!measured_.empty() && (timer_.rounds() < wanted || Now() - start < seconds))
        timer_.Round(timer_.rounds() < wanted);
      bool noisy = false;
      for (size_t i = 0; i < measured_.size(); ++i) {
        const auto [module, node] = measured_[i];
        ModuleTimes taken;
        timer_.TakeTimes(i, taken);
        SetTimes(taken, mine[module].nodes[node]);
        noisy = noisy || HasNoise(mine[module].nodes[node]);
      }
      if (Longest(noisy) == 0) return;
    }
  }

  // Loads, measures and frees one module of each rank after the other, on all ranks at once.
  // Repeats noisy measurements.
  void MeasureForwards(std::vector<Profile>& mine) {
    const auto most = static_cast<size_t>(Longest(static_cast<double>(forwards_.size())));
    for (size_t i = 0; i < most; ++i) {
      std::optional<LoadedModule> module;
      if (i < forwards_.size()) module = LoadForward(forwards_[i].first);
      transport_.AllGather("");
      if (!module) continue;
      const auto& [index, inputs] = forwards_[i];
      ProfileTime& time = mine[static_cast<size_t>(index)].nodes[0].forward;
      for (int times = 1; times <= kMostTimes; ++times) {
        time = TimeOf(TimeForwards(*module, inputs, std::max(options_.warm_up, 1),
                                   options_.repeat * times, device_));
        if (!IsNoisy(time.median, time.spread)) break;
      }
      forwards_[i].second.clear();
    }
  }

  LoadedModule LoadForward(int index) {
    LoadedModule module = LoadModuleWith(options_.package, manifest_, index,
                                         {.source = WeightSource::kFile, .device = device_});
    SetTraining(module, false);
    return module;
  }

  // Runs a module once. Its times are measured when all ranks have their inputs.
  ModuleTimes RunForward(const LoadedModule& module, const std::vector<c10::IValue>& inputs) {
    ModuleTimes times;
    MemoryMeter meter;
    meter.Show(device_);
    times.outputs = ForwardIsland(module, inputs, {}, nullptr);
    times.forward_only_bytes = times.peak_bytes = meter.peak();
    times.held_inputs = times.held_inputs_for_weights = std::vector<bool>(inputs.size(), false);
    times.held_outputs = std::vector<bool>(times.outputs.size(), false);
    forwards_.emplace_back(module.index, inputs);
    return times;
  }

  void WarnOfNoise(const Profile& profile) const {
    std::vector<std::string> noisy;
    for (const ProfileNode& node : profile.nodes)
      if (HasNoise(node)) noisy.push_back(node.name);
    if (noisy.empty()) return;
    PrintWarning("the times of " + Join(noisy, ", ") +
                 " are noisy (the table and the file have their spread)\n  stop other programs "
                 "on these machines, or give more --repeat");
  }

  Profile Header(int64_t microbatch) const {
    Profile profile;
    profile.package = options_.package;
    profile.microbatch = microbatch;
    profile.repeat = options_.repeat;
    profile.threads = options_.threads;
    profile.fine = options_.fine;
    return profile;
  }

  Profile MeasureOne(int index, Values& values) {
    const ModuleInfo& info = manifest_.modules[index];
    LoadedModule& module = modules_.emplace_back(
        options_.forward_only ? LoadForward(index)
                              : LoadModuleWith(options_.package, manifest_, index,
                                               {.source = WeightSource::kFile, .device = device_}));
    if (!options_.forward_only)
      UseBody(module, BodyAskedFor(job_.body).value_or(BodyChoice::kAuto),
              device_.is_cpu() ? "" : "runs on " + device_.str());
    Profile profile = Header(0);
    std::vector<c10::IValue> inputs;
    std::vector<bool> wanted;
    for (int id : info.inputs) {
      inputs.push_back(values.at(id));
      const ValueInfo& value = manifest_.values[id];
      wanted.push_back(!options_.forward_only && value.gradient && value.producer >= 0 &&
                       inputs.back().isTensor());
      profile.values.push_back({value.name, -1, {}, BytesOf(inputs.back()), wanted.back()});
    }
    ModuleParts& parts = parts_.emplace_back();
    if (options_.fine) parts = CutIntoParts(module, info);
    std::vector<c10::IValue> outputs;
    try {
      outputs = parts.parts.size() > 1 ? MeasureParts(module, parts, inputs, wanted, profile)
                                       : MeasureWhole(module, inputs, profile);
    } catch (const std::exception& e) {
      throw Error(options_.package + "/" + info.code,
                  std::string("cannot be measured\n") + e.what());
    }
    for (size_t i = 0; i < info.outputs.size(); ++i) values[info.outputs[i]] = outputs[i];
    if (options_.forward_only) modules_.clear();
    return profile;
  }

  std::vector<c10::IValue> MeasureWhole(LoadedModule& module,
                                        const std::vector<c10::IValue>& inputs, Profile& profile) {
    const ModuleInfo& info = manifest_.modules[module.index];
    const bool forward_only = options_.forward_only;
    ModuleTimes measured =
        forward_only ? RunForward(module, inputs) : timer_.Add(module, manifest_, inputs);
    if (!forward_only) measured_.emplace_back(static_cast<size_t>(module.index), 0);
    std::vector<size_t> held(info.held.size());
    for (size_t w = 0; w < held.size(); ++w) held[w] = w;
    ProfileNode node = NodeOf(measured, info, held, module, inputs);
    if (forward_only) node.trained = 0;  // there are no gradients
    node.name = info.name;
    node.description = Join(info.covers, ", ");
    node.rank = transport_.rank();
    for (size_t i = 0; i < inputs.size(); ++i) {
      if (measured.held_inputs[i]) node.held.push_back(static_cast<int>(i));
      if (measured.held_inputs_for_weights[i]) node.held_for_weight.push_back(static_cast<int>(i));
    }
    profile.nodes.push_back(node);
    for (ProfileValue& value : profile.values) value.consumers = {0};
    for (size_t i = 0; i < info.outputs.size(); ++i) {
      const ValueInfo& value = manifest_.values[info.outputs[i]];
      profile.values.push_back({value.name,
                                0,
                                {},
                                BytesOf(measured.outputs[i]),
                                value.gradient && !forward_only,
                                measured.held_outputs[i]});
    }
    return measured.outputs;
  }

  std::vector<c10::IValue> MeasureParts(const LoadedModule& module, const ModuleParts& parts,
                                        const std::vector<c10::IValue>& inputs,
                                        const std::vector<bool>& wanted, Profile& profile) {
    const ModuleInfo& info = manifest_.modules[module.index];
    std::vector<c10::IValue> known(static_cast<size_t>(parts.values));
    std::vector<bool> gradient(known.size(), false);
    std::vector<int> entry(known.size(), -1);  // index in profile.values
    for (size_t i = 0; i < inputs.size(); ++i) {
      known[i] = inputs[i];
      gradient[i] = wanted[i];
      entry[i] = static_cast<int>(i);
    }
    for (size_t p = 0; p < parts.parts.size(); ++p) {
      const ModulePart& part = parts.parts[p];
      int here = static_cast<int>(p);
      std::vector<c10::IValue> arguments;
      std::vector<bool> asked;
      for (int id : part.inputs) {
        arguments.push_back(known[id]);
        asked.push_back(gradient[id]);
        auto& consumers = profile.values[entry[id]].consumers;
        if (consumers.empty() || consumers.back() != here) consumers.push_back(here);
      }
      ModuleTimes measured = timer_.Add(part.module, arguments, asked);
      measured_.emplace_back(static_cast<size_t>(module.index), p);
      ProfileNode node = NodeOf(measured, info, part.held, part.module, arguments);
      node.name = info.name + "." + std::to_string(p);
      node.description = part.label;
      node.rank = transport_.rank();
      for (size_t i = 0; i < part.inputs.size(); ++i) {
        const int value = entry[part.inputs[i]];
        if (measured.held_inputs[i]) Insert(value, node.held);
        if (measured.held_inputs_for_weights[i]) Insert(value, node.held_for_weight);
      }
      profile.nodes.push_back(node);
      for (size_t o = 0; o < part.outputs.size(); ++o) {
        int id = part.outputs[o];
        known[id] = measured.outputs[o];
        gradient[id] = measured.gradients[o];
        entry[id] = static_cast<int>(profile.values.size());
        profile.values.push_back({info.name + "/" + std::to_string(id),
                                  here,
                                  {},
                                  BytesOf(known[id]),
                                  gradient[id],
                                  measured.held_outputs[o]});
      }
    }
    std::vector<c10::IValue> outputs;
    for (size_t i = 0; i < parts.outputs.size(); ++i) {
      int id = parts.outputs[i];
      profile.values[entry[id]].name = manifest_.values[info.outputs[i]].name;
      outputs.push_back(known[id]);
    }
    return outputs;
  }

  // Sends the outputs of a module to the ranks that use them, and drops values that this rank no
  // longer needs.
  void Exchange(int module, Values& values) {
    int owner = rank_of_[module], rank = transport_.rank();
    for (int id : manifest_.modules[module].outputs) {
      std::vector<int> users;
      for (int consumer : manifest_.values[id].consumers)
        if (int user = rank_of_[consumer];
            user != owner && std::find(users.begin(), users.end(), user) == users.end())
          users.push_back(user);
      for (int user : users) {
        if (rank == owner) SendValue(transport_, user, values.at(id));
        if (rank == user)
          values[id] = ReceiveValue(transport_, owner, manifest_.values[id], device_);
      }
    }
    std::erase_if(values, [&](const auto& entry) {
      const std::vector<int>& consumers = manifest_.values[entry.first].consumers;
      return std::none_of(consumers.begin(), consumers.end(), [&](int consumer) {
        return consumer > module && rank_of_[consumer] == rank;
      });
    });
  }

  const ProfileOptions& options_;
  Transport& transport_;
  Manifest manifest_;
  Job job_;                                    // only its defaults without options_.job
  const std::vector<VisibleDevices> visible_;  // by rank
  const std::vector<std::string> devices_;     // by rank
  const c10::Device device_;
  std::vector<int> rank_of_;  // by module
  // The modules, or their parts, that this rank times; measured_ has the module and node of each.
  std::deque<LoadedModule> modules_;
  std::deque<ModuleParts> parts_;
  ModuleTimer timer_;
  std::vector<std::pair<size_t, size_t>> measured_;
  std::vector<std::pair<int, std::vector<c10::IValue>>> forwards_;  // own modules and their inputs
};

}  // namespace

Profile MeasurePackage(const ProfileOptions& options, Transport& transport, std::string& source) {
  return Profiler(options, transport).Run(source);
}

}  // namespace pipewright
