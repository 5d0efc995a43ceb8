#include "runtime/rank_device.h"

#include <ATen/Context.h>
#include <gtest/gtest.h>

#include "tests/error_text.h"

namespace pipewright {
namespace {

const Accelerators kNone, kTwo{"cuda", 2};

std::string Choose(const std::string& name, const PlaceOnHost& place, const Accelerators& found,
                   bool own = false, bool share = false) {
  return ChooseDevice({name, "job.json: device", own}, place, found, share);
}

std::string Refusal(const std::string& name, const PlaceOnHost& place, const Accelerators& found) {
  return ErrorOf([&] { Choose(name, place, found); });
}

TEST(RankDevice, PlacesAreCountedAmongRanksThatSeeTheSame) {
  const VisibleDevices a{"", "", {"a"}}, b{"", "", {"b"}};
  const std::vector<VisibleDevices> visible = {a, b, a, b, a};
  const std::vector<AskedDevice> asked(5, {"auto", "--device"});
  auto place = [&](size_t rank) {
    const PlaceOnHost found = PlaceOf(rank, visible, asked);
    return std::pair(found.local, found.count);
  };
  EXPECT_EQ(place(0), std::pair(0, 3));
  EXPECT_EQ(place(3), std::pair(1, 2));
  EXPECT_EQ(place(4), std::pair(2, 3));
}

TEST(RankDevice, RanksOnTheCpuShareNoDevice) {
  const std::vector<VisibleDevices> visible(4, VisibleDevices{"", "", {"a"}});
  const std::vector<AskedDevice> asked = {{"cpu", ""}, {"cuda", ""}, {"", ""}, {"cuda", ""}};
  EXPECT_EQ(PlaceOf(1, visible, asked).local, 0);
  EXPECT_EQ(PlaceOf(3, visible, asked).local, 1);
  EXPECT_EQ(PlaceOf(3, visible, asked).count, 2);
}

// Under cgroups each rank sees its own GPU as number 0.
TEST(RankDevice, BusIdsTellDevicesApart) {
  auto one = [](const std::string& id) {
    return DevicesOfRank("host", "0", 1, [=](int) { return id; });
  };
  const VisibleDevices first = one("0000:01:00.0"), second = one("0000:41:00.0");
  EXPECT_FALSE(first == second);
  EXPECT_NE(DeviceId(first, "cuda:0"), DeviceId(second, "cuda:0"));
  EXPECT_EQ(DeviceId(first, "cuda:0"), "host cuda 0000:01:00.0");
  // Under any number.
  const VisibleDevices both = DevicesOfRank(
      "host", "1,0", 2, [](int number) { return number == 0 ? "0000:41:00.0" : "0000:01:00.0"; });
  EXPECT_EQ(DeviceId(both, "cuda:1"), DeviceId(first, "cuda:0"));
}

TEST(RankDevice, WithoutBusIdsTheVisibleDevicesTellApart) {
  auto of = [](const std::string& host, const std::string& visible) {
    return DevicesOfRank(host, visible, 1, [](int) { return ""; });
  };
  EXPECT_EQ(of("a", "0"), of("a", "0"));
  EXPECT_FALSE(of("a", "0") == of("a", "1"));
  EXPECT_FALSE(of("a", "0") == of("b", "0"));
  EXPECT_NE(DeviceId(of("a", "0"), "cuda:0"), DeviceId(of("a", "1"), "cuda:0"));
  EXPECT_NE(DeviceId(of("a", "0"), "cuda:0"), DeviceId(of("b", "0"), "cuda:0"));
}

// Parts of one GPU are devices of their own, between which there is no NCCL.
TEST(RankDevice, PartsOfAGpu) {
  auto part = [](const std::string& name) {
    return DevicesOfRank("host", name, 1, [](int) { return "0000:01:00.0"; });
  };
  const VisibleDevices first = part("MIG-1"), second = part("MIG-2");
  EXPECT_FALSE(first == second);
  EXPECT_EQ(DeviceId(first, "cuda:0"), DeviceId(second, "cuda:0"));
}

TEST(RankDevice, StaysOnTheCpuUnlessAsked) {
  EXPECT_EQ(Choose("", {1, 2}, kTwo), "cpu");
  EXPECT_EQ(Choose("cpu", {1, 2}, kTwo), "cpu");
}

TEST(RankDevice, AutoTakesWhatIsThere) {
  EXPECT_EQ(Choose("auto", {1, 2}, kNone), "cpu");
  EXPECT_EQ(Choose("auto", {1, 2}, {"cuda", 0}), "cpu");
  EXPECT_EQ(Choose("auto", {1, 2}, kTwo), "cuda:1");
}

TEST(RankDevice, ATypeMeansOneDeviceForEachRank) {
  EXPECT_EQ(Choose("cuda", {0, 2}, kTwo), "cuda:0");
  EXPECT_EQ(Choose("cuda", {1, 2}, kTwo), "cuda:1");
  EXPECT_EQ(Choose("cuda", {3, 4}, kTwo, false, /*share=*/true), "cuda:1");
}

TEST(RankDevice, ADeviceByNameIsForOneRank) {
  EXPECT_EQ(Choose("cuda:1", {0, 1}, kTwo), "cuda:1");
  EXPECT_EQ(Choose("cuda:1", {0, 4}, kTwo, /*own=*/true), "cuda:1");
  EXPECT_EQ(Choose("cuda:01", {0, 1}, kTwo), "cuda:1");
  EXPECT_EQ(Choose("cuda:1", {3, 4}, kTwo, false, /*share=*/true), "cuda:1");
}

TEST(RankDevice, RefusesToShareUnasked) {
  EXPECT_EQ(Refusal("auto", {0, 3}, kTwo),
            "job.json: device: 3 ranks of this host would share 2 cuda devices\n"
            "  start fewer ranks on the host, allow it with --share-devices, or name the device of "
            "each rank in the conf (rank_to_device_map) instead");
  EXPECT_EQ(Refusal("cuda:1", {0, 2}, kTwo),
            "job.json: device: 2 ranks of this host would share cuda:1\n"
            "  start fewer ranks on the host, allow it with --share-devices, or name the device of "
            "each rank in the conf (rank_to_device_map) instead");
}

TEST(RankDevice, RefusesWhatIsNotThere) {
  EXPECT_EQ(Refusal("cuda", {0, 1}, kNone),
            "job.json: device: there is no device \"cuda\": this LibTorch was built for CPUs only\n"
            "  build with a LibTorch for it (CMAKE_PREFIX_PATH), or run on the CPU: \"cpu\"");
  EXPECT_EQ(Refusal("cuda:0", {0, 1}, {"cuda", 0}),
            "job.json: device: there is no device \"cuda:0\": this host has no cuda devices\n"
            "  look for the driver (nvidia-smi) and at CUDA_VISIBLE_DEVICES, let a container see "
            "devices (docker run --gpus all), or run on the CPU: \"cpu\"");
  EXPECT_EQ(Refusal("cuda:1", {0, 1}, {"cuda", 1}),
            "job.json: device: there is no device \"cuda:1\": this host has 1 cuda device\n"
            "  it is cuda:0");
  for (const char* name : {"cuda:2", "cuda:999", "xpu"})
    EXPECT_EQ(Refusal(name, {0, 1}, kTwo),
              "job.json: device: there is no device \"" + std::string(name) +
                  "\": this host has 2 cuda devices\n  they are cuda:0 to cuda:1");
  for (const Accelerators& here : {kNone, kTwo})
    for (const char* name : {"gpu", "gpu0", "CUDA", "0", "cpu:0", "auto:1", "cuda:", "cuda:x",
                             "cuda:1:1", "cuda:9999"})
      EXPECT_EQ(Refusal(name, {0, 1}, here),
                "job.json: device: \"" + std::string(name) +
                    "\" is not a device\n"
                    "  give cpu, auto, a type such as cuda, or one device such as cuda:0");
}

TEST(RankDevice, Tf32IsUsedIfTheJobAllowsIt) {
  for (bool allowed : {true, false}) {
    UseTf32(allowed);
    EXPECT_EQ(at::globalContext().allowTF32CuBLAS(), allowed);
    EXPECT_EQ(at::globalContext().allowTF32CuDNN(), allowed);
  }
}

}  // namespace
}  // namespace pipewright
