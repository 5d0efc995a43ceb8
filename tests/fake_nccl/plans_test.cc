// Plans run over NCCL: the executor and NcclTransport, with a model made of arithmetic whose
// messages and gradients lie on devices. Its results are those of a single loop.
#include <ATen/ATen.h>
#include <c10/core/Event.h>
#include <c10/core/StreamGuard.h>
#include <c10/core/impl/VirtualGuardImpl.h>
#include <gtest/gtest.h>

#include <cstring>
#include <map>

#include "plan/schedules/table.h"
#include "runtime/exec/reduce.h"
#include "runtime/links/nccl_transport.h"
#include "runtime/links/pairs.h"
#include "runtime/module/messages.h"
#include "runtime/rank_device.h"
#include "runtime/transport/thread_transport.h"
#include "tests/runtime/exec/fake_model.h"

namespace pipewright {
namespace {

c10::Stream CurrentStream(at::Device device) {
  return c10::impl::VirtualGuardImpl(device.type()).getStream(device);
}

void Follow(const c10::Stream& first, const c10::Stream& second) {
  c10::Event event(first.device_type());
  event.record(first);
  event.block(second);
}

// Writes integers of 64 bits as four floating-point numbers each, whose sums are exact.
at::Tensor Split(const at::Tensor& bytes) {
  const at::Tensor words = bytes.view(at::kLong);
  std::vector<at::Tensor> parts;
  for (int bits = 0; bits < 64; bits += 16)
    parts.push_back(words.bitwise_right_shift(bits).bitwise_and(0xffff).to(at::kDouble));
  return at::stack(parts);
}

at::Tensor Joined(const at::Tensor& parts) {
  at::Tensor words = at::zeros({parts.size(1)}, at::kLong);
  for (int64_t i = 0; i < 4; ++i) words += parts[i].to(at::kLong).bitwise_left_shift(16 * i);
  return words.view(at::kByte);
}

// Keeps the first region of each of the inner body's messages, and all gradients, on a device.
class DeviceBody : public StageBody {
 public:
  DeviceBody(StageBody& inner, at::Device device, const FakeCase& c)
      : inner_(inner),
        device_(device),
        case_(c),
        stream_(c10::impl::VirtualGuardImpl(device.type()).getNewStream(device)) {}

  Bundle Allocate(int edge, int microbatch, bool backward, int slot, bool on_device) override {
    Bundle host = inner_.Allocate(edge, microbatch, backward, slot, false);
    return on_device ? Twin(std::move(host)) : host;
  }
  int64_t MessageBytes(int edge, int microbatch, bool backward) override {
    return inner_.MessageBytes(edge, microbatch, backward);
  }
  Bundle OnHost(Bundle message) override { return ToHost(message); }
  std::vector<Bundle> Forward(int stage, int microbatch, std::vector<Bundle> inputs) override {
    return ToDevice(inner_.Forward(stage, microbatch, ToHost(std::move(inputs))));
  }
  std::vector<Bundle> Backward(ActionKind kind, int stage, int microbatch,
                               std::vector<Bundle> gradients) override {
    return ToDevice(inner_.Backward(kind, stage, microbatch, ToHost(std::move(gradients))));
  }
  Bundle Gradient(int group, int holder) override {
    Bundle& kept = gradients_[{group, holder}];
    if (!kept.owner) {
      kept = Twin(inner_.Gradient(group, holder), AllReduces(group));
      Upload(kept);
    }
    return kept;
  }
  bool AllReduces(int group) override {
    return case_.any_order && !AllReduceRanks(case_.groups[static_cast<size_t>(group)]).empty();
  }
  Bundle Scratch(int group) override { return Twin(inner_.Scratch(group)); }
  void Add(const Bundle& into, const Bundle& from) override {
    inner_.Add(ToHost(into), ToHost(from));
    Upload(into);
  }
  void Copy(const Bundle& into, const Bundle& from) override {
    inner_.Copy(ToHost(into), ToHost(from));
    Upload(into);
  }
  void OnReady(std::function<void(int)> ready) override { inner_.OnReady(std::move(ready)); }
  std::shared_ptr<void> Exchanging(bool begins) override {
    if (begins) Follow(CurrentStream(device_), stream_);
    return std::make_shared<c10::StreamGuard>(stream_);
  }
  void EndExchanges() override { Follow(stream_, CurrentStream(device_)); }
  void Step(int stage) override {
    // Groups whose exchange has begun early must be left as they are.
    for (const auto& [place, gradient] : gradients_) ToHost(gradient);
    inner_.Step(stage);
    gradients_.clear();
  }
  void Load(int stage) override { inner_.Load(stage); }
  void Evict(int stage) override { inner_.Evict(stage); }

 private:
  struct Pair {
    at::Tensor device;
    Bundle host;
    bool split = false;
  };

  // Returns a message on the device, whose contents have yet to arrive.
  Bundle Twin(Bundle host, bool split = false) {
    auto pair = std::make_shared<Pair>();
    const int64_t bytes = static_cast<int64_t>(host.regions[0].bytes);
    pair->split = split;
    pair->device = split ? at::empty({4, bytes / 8}, at::device(device_).dtype(at::kDouble))
                         : at::empty({bytes}, at::device(device_).dtype(at::kByte));
    Bundle twin{host.regions, pair};
    twin.regions[0] = RegionOf(pair->device);
    pair->host = std::move(host);
    return twin;
  }
  static Pair* PairOf(const Bundle& bundle) {
    return bundle.regions[0].on_device ? static_cast<Pair*>(bundle.owner.get()) : nullptr;
  }
  static at::Tensor HostPart(const Pair& pair) {
    const Region& region = pair.host.regions[0];
    return at::from_blob(region.data, {static_cast<int64_t>(region.bytes)}, at::kByte);
  }
  static void Upload(const Bundle& bundle) {
    const Pair* pair = PairOf(bundle);
    if (!pair) return;
    const at::Tensor host = HostPart(*pair);
    pair->device.copy_(pair->split ? Split(host) : host);
  }
  static Bundle ToHost(const Bundle& bundle) {
    const Pair* pair = PairOf(bundle);
    if (!pair) return bundle;
    HostPart(*pair).copy_(pair->split ? Joined(pair->device.cpu()) : pair->device);
    return pair->host;
  }
  static std::vector<Bundle> ToHost(std::vector<Bundle> bundles) {
    for (Bundle& bundle : bundles) bundle = ToHost(bundle);
    return bundles;
  }
  Bundle ToDevice(Bundle host) {
    Bundle twin = Twin(std::move(host));
    Upload(twin);
    return twin;
  }
  std::vector<Bundle> ToDevice(std::vector<Bundle> bundles) {
    for (Bundle& bundle : bundles) bundle = ToDevice(std::move(bundle));
    return bundles;
  }

  StageBody& inner_;
  const at::Device device_;
  const FakeCase& case_;
  const c10::Stream stream_;
  std::map<std::pair<int, int>, Bundle> gradients_;
};

// Returns how many lists of ranks add values over NCCL, which they do if any order will do.
size_t RunOnDevices(const FakeCase& c) {
  DevicePeers peers{PlanPairs(c.plan, c.graph), {}};
  for (const SharedGroup& group : c.groups) {
    const std::vector<int> ranks = AllReduceRanks(group);
    if (!c.any_order || ranks.empty())
      peers.pairs.merge(ReducePairs(group));
    else
      peers.sums.insert(ranks);
  }
  RunThreads(static_cast<int>(c.plan.ranks.size()), [&](Transport& inner) {
    const at::Device device("sim:" + std::to_string(inner.rank() % 2));
    UseDevice(device);
    NcclTransport transport(inner, device, peers);
    RunAndCompare(c, transport, nullptr,
                  [&](StageBody& body) { return std::make_unique<DeviceBody>(body, device, c); });
  });
  return peers.sums.size();
}

TEST(PlansOverNccl, EverySchedule) {
  int runs = 0;
  for (const ScheduleKind& kind : Schedules())
    for (int ranks : {2, 4}) {
      if (!kind.make) continue;
      SCOPED_TRACE(std::string(kind.name) + " on " + std::to_string(ranks) + " ranks");
      const StagePlacement placement =
          ParsePlacement(DefaultPlacement(kind.name), ranks, DefaultStages(kind.name, ranks));
      FakeCase c = ScheduleCase(kind.name, SkipGraph(placement), 8);
      c.steps = 2;
      RunOnDevices(c);
      ++runs;
    }
  EXPECT_EQ(runs, 30);
}

// Each rank posts its transfers in an order of its own.
TEST(PlansOverNccl, RandomGraphsAndOrders) {
  size_t sums = 0;
  for (unsigned seed = 0; seed < 40; ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    FakeCase c = RandomCase(seed, 1 + seed % 5);
    EXPECT_EQ(RunOnDevices(c), 0);
    c.any_order = true;
    sums += RunOnDevices(c);
    if (testing::Test::HasFailure()) break;
  }
  EXPECT_GT(sums, 20u);
}

}  // namespace
}  // namespace pipewright
