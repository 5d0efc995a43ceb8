// Checks that the test device catches mistakes that a GPU punishes only by chance, and that it has
// the CPU's bits.
#include <ATen/DeviceAccelerator.h>
#include <c10/core/Event.h>
#include <c10/core/StreamGuard.h>
#include <gtest/gtest.h>
#include <torch/script.h>
#include <torch/torch.h>

#include <cstring>

#include "gate.h"
#include "tests/error_text.h"
#include "torch_device.h"

namespace sim {

using pipewright::ErrorOf;

namespace {

using at::Tensor;

const c10::Device kFirst("sim:0"), kSecond("sim:1");

c10::impl::VirtualGuardImpl Streams() { return c10::impl::VirtualGuardImpl(at::kPrivateUse1); }

// A test's tensors live on a stream of its own, since errors stay with their stream.
struct OnDevice : testing::Test {
  c10::StreamGuard guard{Streams().getNewStream(kFirst)};
  c10::Stream main = guard.current_stream(), side = Streams().getNewStream(kFirst);

  void SideWaitsForMain() const { Order(main, side); }
  void MainWaitsForSide() const { Order(side, main); }
  static void Order(const c10::Stream& before, const c10::Stream& after) {
    c10::Event event(at::kPrivateUse1);
    event.record(before);
    event.block(after);
  }
  Tensor OnSide(const Tensor& x) const {
    c10::StreamGuard on(side);
    return x + 1;
  }
};

#define EXPECT_SAYS(text, ...)                                              \
  do {                                                                      \
    const std::string said = ErrorOf<std::exception>([&] { __VA_ARGS__; }); \
    EXPECT_NE(said.find(text), std::string::npos) << "said: " << said;      \
  } while (false)

bool SameBits(const Tensor& a, const Tensor& b) {
  const Tensor x = a.detach().cpu().contiguous(), y = b.detach().cpu().contiguous();
  return x.sizes() == y.sizes() && x.scalar_type() == y.scalar_type() &&
         std::memcmp(x.const_data_ptr(), y.const_data_ptr(), x.nbytes()) == 0;
}

TEST_F(OnDevice, IsTheAccelerator) {
  EXPECT_EQ(at::getAccelerator(), at::kPrivateUse1);
  EXPECT_EQ(at::accelerator::deviceCount(), DeviceCount());
  EXPECT_EQ(torch::ones({2}, kSecond).device().str(), "sim:1");
  EXPECT_SAYS("there is no sim:7", torch::ones({2}, c10::Device("sim:7")));
  EXPECT_NE(main.native_handle(), nullptr);
}

using OnDeviceDeathTest = OnDevice;

// The host must not read or write a tensor of the device, or call the CPU's code on its address.
TEST_F(OnDeviceDeathTest, HostCannotTouchItsMemory) {
  const Tensor x = torch::ones({64}, kFirst);
  volatile float* const data = x.mutable_data_ptr<float>();
  float copy[64];
  EXPECT_EXIT(std::exit(static_cast<int>(data[0])), testing::KilledBySignal(SIGSEGV), "");
  EXPECT_EXIT(data[0] = 1, testing::KilledBySignal(SIGSEGV), "");
  EXPECT_EXIT(std::memcpy(copy, x.const_data_ptr(), sizeof copy), testing::KilledBySignal(SIGSEGV),
              "");
}

TEST_F(OnDevice, CopyToTheHostReadTooEarlyIsNaN) {
  const Tensor x = torch::ones({4}, kFirst);
  Gate gate(QueueOf(main));
  const Tensor host = x.to(at::kCPU, at::kFloat, /*non_blocking=*/true);
  EXPECT_TRUE(host.is_pinned());
  EXPECT_TRUE(std::isnan(host.const_data_ptr<float>()[0]));
  gate.Open();
  main.synchronize();
  EXPECT_EQ(host.const_data_ptr<float>()[0], 1);
}

// Pinned memory is read when the stream gets there; the host waits for copies of other memory.
TEST_F(OnDevice, CopyFromPinnedMemoryIsLate) {
  const Tensor pinned = torch::ones({4}).pin_memory(), plain = torch::ones({4});
  Tensor from_pinned = torch::empty({4}, kFirst), from_plain = torch::empty({4}, kFirst);
  EXPECT_FALSE(Gate(QueueOf(main)).StopsHost([&] {
    from_pinned.copy_(pinned, /*non_blocking=*/true);
    pinned.fill_(2);
  }));
  EXPECT_EQ(from_pinned.sum().item<float>(), 8);
  EXPECT_TRUE(Gate(QueueOf(main)).StopsHost([&] {
    from_plain.copy_(plain, /*non_blocking=*/true);
    plain.fill_(2);
  }));
  EXPECT_EQ(from_plain.sum().item<float>(), 4);
}

TEST_F(OnDevice, AnIdleStreamIsAsGoodAsAWait) {
  Tensor x = torch::ones({4}, kFirst);
  SideWaitsForMain();
  Tensor y = OnSide(x);
  while (!side.query()) {
  }
  x.reset();
  EXPECT_EQ(y.add(1).sum().item<float>(), 12);
}

TEST_F(OnDevice, StreamsWithoutAnEventRace) {
  const Tensor x = torch::ones({1000}, kFirst);
  EXPECT_SAYS("race: aten::add on stream", OnSide(x));
  main.synchronize();  // waiting on the host orders accesses, too
  const Tensor y = OnSide(x);
  EXPECT_SAYS("with no event between them", y * 2);
  EXPECT_SAYS("writes what aten::add", x.zero_());
  MainWaitsForSide();
  EXPECT_EQ((y * 2).sum().item<float>(), 4000);
  x.mul_(2);
  EXPECT_SAYS("reads what aten::mul", OnSide(x));
  SideWaitsForMain();
  EXPECT_EQ(ErrorOf<std::exception>([&] { OnSide(x); }), "");
}

TEST_F(OnDevice, MemoryFreedInUseIsAnError) {
  Tensor x = torch::ones({1 << 20}, kFirst);
  SideWaitsForMain();
  const Tensor y = OnSide(x);
  x.reset();
  EXPECT_SAYS("record_stream is missing", main.synchronize());
  EXPECT_SAYS("record_stream is missing", torch::ones({4}, kFirst));
}

TEST_F(OnDevice, RecordedMemoryMayBeFreed) {
  Tensor x = torch::ones({1 << 20}, kFirst);
  SideWaitsForMain();
  Gate gate(QueueOf(side));
  const Tensor y = OnSide(x);
  x.record_stream(side);
  x.reset();
  const Tensor again = torch::zeros({1 << 20}, kFirst);  // in the same memory
  gate.Open();
  main.synchronize();
  side.synchronize();
  EXPECT_EQ(y.sum().item<float>(), 2 << 20);
}

TEST_F(OnDevice, FreshMemoryIsNaN) {
  EXPECT_TRUE(std::isnan(torch::empty({4}, kFirst).cpu()[3].item<float>()));
}

TEST_F(OnDevice, TensorsOfSeveralDevicesDoNotMix) {
  const Tensor x = torch::ones({4}, kFirst);
  EXPECT_SAYS("tensors of sim:0 and sim:1", x + torch::ones({4}, kSecond));
  EXPECT_SAYS("a tensor of the CPU", x + torch::ones({4}));
  EXPECT_EQ((x + torch::tensor(1.f)).sum().item<float>(), 8);
  EXPECT_TRUE(SameBits(x.to(kSecond), x));
}

// A library that launches by the stream's native handle declares what it reads and writes.
TEST_F(OnDevice, LaunchesOfLibrariesAreChecked) {
  const Tensor x = torch::ones({4}, kFirst), y = torch::empty({4}, kFirst);
  SideWaitsForMain();
  const Access accesses[] = {AccessOf(x, false), AccessOf(y, true)};
  std::pair<const void*, const void*> copies{y.const_data_ptr(), x.const_data_ptr()};
  auto copy = [](void* context) {
    auto [to, from] = *static_cast<std::pair<const void*, const void*>*>(context);
    std::memcpy(sim_shadow(to), sim_shadow(from), 4 * sizeof(float));
  };
  sim_launch(side.native_handle(), "receive", copy, &copies, accesses, 2);
  EXPECT_SAYS("reads what receive on stream", y.add(1));
  MainWaitsForSide();
  EXPECT_EQ(y.sum().item<float>(), 4);
}

TEST_F(OnDevice, EventsTakeTime) {
  c10::Event from(at::kPrivateUse1, c10::EventFlag::BACKEND_DEFAULT);
  c10::Event to(at::kPrivateUse1, c10::EventFlag::BACKEND_DEFAULT);
  Gate gate(QueueOf(main));
  from.record(main);
  to.record(main);
  EXPECT_FALSE(to.query());
  gate.Open();
  to.synchronize();
  EXPECT_TRUE(to.query());
  EXPECT_GE(from.elapsedTime(to), 0);
}

// Operators whose sizes depend on values, random ones, and those that write to their arguments.
TEST_F(OnDevice, OperatorsDoAsTheCpus) {
  const Tensor v = torch::arange(10, kFirst);
  EXPECT_EQ(torch::nonzero(v > 6).size(0), 3);
  EXPECT_EQ(v.masked_select(v > 4).size(0), 5);
  EXPECT_EQ(v.index({v > 7}).size(0), 2);
  Tensor out = torch::empty({0}, kFirst);
  torch::add_out(out, torch::ones({3}, kFirst), torch::ones({3}, kFirst));
  EXPECT_EQ(out.sum().item<float>(), 6);
  auto draw = [](c10::Device device) {
    torch::manual_seed(3);
    return torch::empty({100}, device).bernoulli_(0.3).div_(0.3);
  };
  EXPECT_TRUE(SameBits(draw(kFirst), draw(at::kCPU)));
  EXPECT_SAYS("index out of range", torch::embedding(torch::ones({2, 3}, kFirst), v).sum().item());
}

const char* const kCode = R"(
def forward(self, image, ids):
    x = torch.conv2d(image, self.filters, None, [1, 1], [1, 1])
    x = torch.batch_norm(x, self.scale, self.shift, self.mean, self.var, True, 0.1, 1e-05, True)
    x = torch.max_pool2d(torch.relu(x), [2, 2])
    n = x.size(0)
    x = x.reshape([n, 16, 32]) + torch.embedding(self.words, ids)
    y = torch.layer_norm(x, [32])
    y = torch.matmul(y, self.project).view([n, 16, 3, 4, 8])
    q, k, v = y.permute([2, 0, 3, 1, 4]).unbind(0)
    a = torch.scaled_dot_product_attention(q, k, v, is_causal=True)
    x = x + torch.gelu(torch.matmul(a.transpose(1, 2).reshape([n, 16, 32]), self.mix))
    mask = torch.arange(16, device=x.device) < 15
    return torch.matmul((x * mask.view([1, 16, 1])).mean([1]), self.head)
)";

torch::jit::Module MakeModule(c10::Device device) {
  torch::manual_seed(0);
  torch::jit::Module module("net");
  const std::pair<const char*, std::vector<int64_t>> weights[] = {
      {"filters", {8, 3, 3, 3}}, {"scale", {8}},    {"shift", {8}},    {"words", {10, 32}},
      {"project", {32, 96}},     {"mix", {32, 32}}, {"head", {32, 10}}};
  for (const auto& [name, sizes] : weights)
    module.register_parameter(name, torch::randn(sizes).to(device).requires_grad_(), false);
  module.register_buffer("mean", torch::zeros({8}).to(device));
  module.register_buffer("var", torch::ones({8}).to(device));
  module.define(kCode);
  return module;
}

// Returns outputs, loss, gradients, weights and buffers of a few steps.
std::vector<Tensor> Train(c10::Device device) {
  torch::jit::Module module = MakeModule(device);
  std::vector<Tensor> weights, found;
  for (const Tensor& weight : module.parameters()) weights.push_back(weight);
  torch::optim::SGD sgd(weights, torch::optim::SGDOptions(0.1).momentum(0.9));
  for (int step = 0; step < 3; ++step) {
    torch::manual_seed(step);
    const Tensor image = torch::randn({4, 3, 16, 16}).to(device);
    const Tensor ids = torch::randint(10, {4, 16}).to(device);
    sgd.zero_grad();
    const Tensor output = module.forward({image, ids}).toTensor();
    const Tensor loss = torch::cross_entropy_loss(output, torch::randint(10, {4}).to(device));
    loss.backward();
    found.insert(found.end(), {output, loss});
    for (const Tensor& weight : weights) found.push_back(weight.grad().clone());
    sgd.step();
  }
  found.insert(found.end(), weights.begin(), weights.end());
  for (const Tensor& buffer : module.buffers()) found.push_back(buffer);
  return found;
}

TEST_F(OnDevice, TrainsWithTheBitsOfTheCpu) {
  at::set_num_threads(1);
  const std::vector<Tensor> cpu = Train(at::kCPU);
  EXPECT_FALSE(SameBits(cpu.front(), cpu[9]));
  for (const c10::Device device : {kFirst, kSecond}) {
    const std::vector<Tensor> here = Train(device);
    ASSERT_EQ(here.size(), cpu.size());
    for (size_t i = 0; i < cpu.size(); ++i) EXPECT_TRUE(SameBits(here[i], cpu[i])) << i;
  }
}

// Two modules on two devices, each differentiated by itself.
TEST_F(OnDevice, IslandsOnTwoDevicesHaveTheBitsOfTheCpu) {
  auto run = [](c10::Device a, c10::Device b) {
    torch::manual_seed(2);
    const Tensor x = torch::randn({8, 16}).to(a);
    const Tensor w = torch::randn({16, 16}).to(a).requires_grad_();
    const Tensor v = torch::randn({16, 4}).to(b).requires_grad_();
    const Tensor sent = torch::layer_norm(torch::mm(x, w), {16});
    const Tensor received = sent.detach().to(b).requires_grad_();
    const Tensor loss = torch::mm(received, v).pow(2).mean();
    loss.backward();
    sent.backward(received.grad().to(a));
    return std::vector<Tensor>{loss, w.grad(), v.grad()};
  };
  const std::vector<Tensor> cpu = run(at::kCPU, at::kCPU), two = run(kFirst, kSecond);
  for (size_t i = 0; i < cpu.size(); ++i) EXPECT_TRUE(SameBits(cpu[i], two[i])) << i;
}

}  // namespace

}  // namespace sim
