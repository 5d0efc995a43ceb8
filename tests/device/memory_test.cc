// Tests that memory of a device, which the host cannot access, is filled from files and read.
#include "tensors/device_memory.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <algorithm>

#include "gate.h"
#include "tensors/dtype.h"
#include "tests/temp_folder.h"
#include "torch_device.h"

namespace pipewright {

namespace {

const at::Device kDevice("sim:0");

// Tensors of several types and sizes, one larger than the buffer through which files are read.
std::vector<at::Tensor> Examples() {
  return {at::randn({3, 5}),
          at::randn({}),
          at::empty({0, 4}),
          at::randn({1200, 1000}),
          at::randn({7}, at::kComplexFloat),
          at::randn({9}).to(at::kBFloat16),
          at::randn({9}) > 0,
          at::arange(11)};
}

bool Same(const at::Tensor& a, const at::Tensor& b) {
  return a.sizes() == b.sizes() && a.dtype() == b.dtype() && HostBytes(a) == HostBytes(b);
}

TEST(DeviceMemory, IsReadFromFiles) {
  const std::string path = TempPath("examples.safetensors");
  const std::vector<at::Tensor> examples = Examples();
  std::vector<TensorToWrite> tensors;
  for (const at::Tensor& example : examples)
    tensors.push_back({.name = std::to_string(tensors.size()),
                       .dtype = SafetensorsDtype(example.scalar_type()),
                       .shape = example.sizes().vec(),
                       .bytes = HostBytes(example),
                       .produce = nullptr});
  WriteSafetensors(path, std::move(tensors));
  const SafetensorsFile file(path);
  for (size_t i = 0; i < examples.size(); ++i)
    for (const at::Device device : {kDevice, at::Device(at::kCPU)}) {
      const at::Tensor read = EmptyOn(device, examples[i].sizes(), examples[i].scalar_type());
      ReadInto(file, file.At(std::to_string(i)), read);
      EXPECT_EQ(read.device(), device);
      EXPECT_EQ(read._version(), 0);
      EXPECT_TRUE(Same(OnHost(read), examples[i])) << i << " on " << device;
    }
}

TEST(DeviceMemory, IsFilledInPieces) {
  for (const at::Tensor& example : {at::randn({3, 5}), at::randn({})})
    for (const at::Device device : {kDevice, at::Device(at::kCPU)}) {
      const at::Tensor filled = EmptyOn(device, example.sizes(), example.scalar_type());
      Filler filler(filled);
      for (std::string_view left = HostBytes(example); !left.empty();) {
        filler.Add(left.substr(0, 7));
        left.remove_prefix(std::min<size_t>(7, left.size()));
      }
      EXPECT_TRUE(Same(OnHost(filled), example)) << device;
    }
}

TEST(DeviceMemory, IsFilledWhileTheHostGoesOn) {
  const at::Tensor here = at::ones({1000});
  at::Tensor there;
  EXPECT_FALSE(sim::Gate(sim::CurrentQueue(0)).StopsHost([&] {
    there = OnDeviceLater(here, kDevice);
    here.fill_(2);
  }));
  EXPECT_EQ(there.sum().item<float>(), 1000);
}

TEST(DeviceMemory, IsCopiedToTheHostOnlyIfItMust) {
  const at::Tensor here = at::randn({4, 3}).t(), there = here.to(kDevice);
  EXPECT_TRUE(OnHost(here).is_same(here));
  EXPECT_NE(MemoryOf(CopyOnHost(here)), MemoryOf(here));
  EXPECT_TRUE(OnHost(there).is_cpu());
  EXPECT_EQ(OnHost(there).strides(), here.strides());
  EXPECT_TRUE(at::equal(CopyOnHost(there), here));
  EXPECT_EQ(MemoryOf(there.t()), MemoryOf(there.detach()));
  EXPECT_THROW(HostBytes(there), c10::Error);
}

}  // namespace

}  // namespace pipewright
