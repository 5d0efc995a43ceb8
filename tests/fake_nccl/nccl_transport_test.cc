#include "runtime/links/nccl_transport.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <thread>

#include "runtime/measure/links.h"
#include "runtime/module/messages.h"
#include "runtime/rank_device.h"
#include "runtime/transport/thread_transport.h"
#include "tests/device/gate.h"
#include "tests/device/torch_device.h"

namespace pipewright {
namespace {

at::Tensor Numbers(int64_t count, at::Device device) {
  return at::arange(count, at::kFloat).to(device);
}

// Runs `act` on two ranks, each on a device of its own.
void OnTwoDevices(const std::function<void(NcclTransport&, at::Device)>& act) {
  RunThreads(2, [&](Transport& inner) {
    const at::Device device("sim:" + std::to_string(inner.rank()));
    UseDevice(device);
    NcclTransport transport(inner, device, {{{0, 1}, {1, 0}}, {}});
    act(transport, device);
  });
}

TEST(NcclTransport, SendsValuesOnDevicesAndOnTheHostInOneBundle) {
  OnTwoDevices([](NcclTransport& transport, at::Device device) {
    const int peer = 1 - transport.rank();
    EXPECT_TRUE(transport.TakesDevices(peer));
    const at::Tensor mine = Numbers(1000, device).add_(transport.rank());
    const at::Tensor flags = at::full({3}, transport.rank(), at::kLong);
    const at::Tensor theirs = at::empty({1000}, at::device(device).dtype(at::kFloat));
    const at::Tensor their_flags = at::empty({3}, at::kLong);
    const Token received = transport.Recv(peer, 7, MakeBundle({theirs, their_flags}));
    const Token sent = transport.Send(peer, 7, MakeBundle({mine, flags}));
    transport.WaitFor(received, {});
    // Launched after WaitFor, so after the transfer.
    EXPECT_TRUE(at::equal(theirs.sub(peer).cpu(), at::arange(1000, at::kFloat)));
    EXPECT_TRUE(at::equal(their_flags, at::full({3}, peer, at::kLong)));
    transport.WaitFor(sent, {});
  });
}

// As sums of gradients do.
TEST(NcclTransport, AnAnswerMayArriveInTheMemoryOfWhatItAnswers) {
  OnTwoDevices([](NcclTransport& transport, at::Device device) {
    const int peer = 1 - transport.rank();
    const at::Tensor memory = Numbers(100, device);
    for (int round = 0; round < 5; ++round)
      if (transport.rank() == 0) {
        const Token sent = transport.Send(peer, 0, MakeBundle({memory}));
        transport.WaitFor(sent, {});
        transport.ComeAfter(sent);
        transport.WaitFor(transport.Recv(peer, 0, MakeBundle({memory})), {});
      } else {
        transport.WaitFor(transport.Recv(peer, 0, MakeBundle({memory})), {});
        const at::Tensor answer = memory.add(1);
        transport.WaitFor(transport.Send(peer, 0, MakeBundle({answer})), {});
      }
    EXPECT_TRUE(at::equal(memory.cpu(), at::arange(100, at::kFloat).add(5 - transport.rank())));
  });
}

// The ranks post their messages in different orders, and wait for the last first.
TEST(NcclTransport, TagsTellMessagesApart) {
  OnTwoDevices([](NcclTransport& transport, at::Device device) {
    const int peer = 1 - transport.rank();
    std::vector<Token> tokens;
    std::vector<at::Tensor> received;
    for (int i = 0; i < 8; ++i)
      if (transport.rank() == 0) {
        tokens.push_back(transport.Send(peer, i, MakeBundle({Numbers(10 + i, device)})));
      } else {
        const int tag = i % 2 ? i - 1 : i + 1;
        received.push_back(at::empty({10 + tag}, at::device(device).dtype(at::kFloat)));
        tokens.push_back(transport.Recv(peer, tag, MakeBundle({received.back()})));
      }
    for (size_t i = tokens.size(); i-- > 0;) transport.WaitFor(tokens[i], {});
    for (const at::Tensor& values : received)
      EXPECT_TRUE(at::equal(values.cpu(), at::arange(values.numel(), at::kFloat)));
  });
}

// Three ranks post sums over two lists in orders of their own, whose values their devices have yet
// to compute, and use them at once.
TEST(NcclTransport, AddsTheValuesOfSeveralRanks) {
  const std::vector<std::vector<int>> lists = {{0, 1, 2}, {2, 0}};
  RunThreads(3, [&](Transport& inner) {
    const at::Device device("sim:" + std::to_string(inner.rank() % 2));
    UseDevice(device);
    NcclTransport transport(inner, device, {{{0, 1}, {1, 0}}, {lists.begin(), lists.end()}});
    const int rank = transport.rank();
    EXPECT_EQ(transport.TakesDevices(2), false);
    struct Sum {
      std::vector<int> ranks;
      at::Tensor values, flags;
      Token token;
    };
    std::vector<Sum> sums;
    const std::vector<at::ScalarType> types = {at::kFloat, at::kDouble, at::kHalf, at::kBFloat16,
                                               at::kComplexFloat};
    for (int i = 0; i < 10; ++i) {
      const int number = i * std::vector<int>{1, 3, 7}[size_t(rank)] % 10;  // in another order
      const std::vector<int>& ranks = lists[number % 4 == 3];
      if (rank == 1 && ranks.size() == 2) continue;
      const at::ScalarType type = types[static_cast<size_t>(number % 5)];
      Sum sum{ranks, Numbers(100 + number, device).to(type).mul(1 + rank), {}, nullptr};
      sum.flags = at::arange(3).eq(rank).logical_or(at::arange(3).eq(number % 3));
      sum.token = transport.AllReduce(ranks, number, MakeBundle({sum.values, sum.flags}));
      sums.push_back(std::move(sum));
    }
    for (const Sum& sum : sums) {
      transport.WaitFor(sum.token, {});
      int factor = 0;
      for (int other : sum.ranks) factor += 1 + other;
      const at::Tensor expected =
          at::arange(sum.values.numel(), at::kFloat).mul(factor).to(sum.values.scalar_type());
      EXPECT_TRUE(at::equal(sum.values.cpu(), expected)) << sum.values.scalar_type();
      at::Tensor set = at::arange(3).eq((sum.values.numel() - 100) % 3);
      for (int other : sum.ranks) set = set.logical_or(at::arange(3).eq(other));
      EXPECT_TRUE(at::equal(sum.flags, set));
    }
  });
}

TEST(NcclTransport, KeepsTheMemoryOfASendUntilItHasLeft) {
  OnTwoDevices([](NcclTransport& transport, at::Device device) {
    const int peer = 1 - transport.rank();
    if (transport.rank() == 0) {
      for (int i = 0; i < 10; ++i)  // the tokens and the tensors are forgotten at once
        transport.Send(peer, i, MakeBundle({Numbers(5000, device).add_(i)}));
      return;
    }
    for (int i = 0; i < 10; ++i) {
      const at::Tensor to = at::empty({5000}, at::device(device).dtype(at::kFloat));
      transport.WaitFor(transport.Recv(peer, i, MakeBundle({to})), {});
      EXPECT_TRUE(at::equal(to.cpu(), at::arange(5000, at::kFloat).add(i)));
    }
  });
}

TEST(NcclTransport, ARankThatOnlyReceivesKeepsNothing) {
  OnTwoDevices([](NcclTransport& transport, at::Device device) {
    const int peer = 1 - transport.rank();
    std::vector<std::weak_ptr<void>> owners;
    for (int i = 0; i < 10; ++i) {
      const at::Tensor values = Numbers(100, device);
      if (transport.rank() == 0) {
        transport.WaitFor(transport.Send(peer, 0, MakeBundle({values})), {});
        continue;
      }
      const Bundle to = MakeBundle({values});
      owners.push_back(to.owner);
      transport.WaitFor(transport.Recv(peer, 0, to), {});
    }
    for (const std::weak_ptr<void>& owner : owners) EXPECT_TRUE(owner.expired());
  });
}

TEST(NcclTransport, ASendUsesItsMemoryUntilItsDeviceHasSentIt) {
  OnTwoDevices([](NcclTransport& transport, at::Device device) {
    const int peer = 1 - transport.rank();
    const at::Tensor values = Numbers(100, device);
    if (transport.rank() == 1)
      return transport.WaitFor(transport.Recv(0, 0, MakeBundle({values})), {});
    sim::Gate gate(sim::CurrentQueue(device.index()));
    const Token sent = transport.Send(peer, 0, MakeBundle({values}));
    transport.WaitFor(sent, {});
    EXPECT_FALSE(transport.HasLeft(sent));
    gate.Open();
    while (!transport.HasLeft(sent)) std::this_thread::yield();
  });
}

TEST(NcclTransport, HostMemoryNeedsNoLink) {
  OnTwoDevices([](NcclTransport& transport, at::Device) {
    const int peer = 1 - transport.rank();
    const at::Tensor mine = at::full({2}, transport.rank()),
                     theirs = at::empty({2}, mine.options());
    const Token sent = transport.Send(peer, 1, MakeBundle({mine}));
    transport.WaitFor(transport.Recv(peer, 1, MakeBundle({theirs})), {});
    transport.WaitFor(sent, {});
    EXPECT_EQ(theirs[0].item<float>(), static_cast<float>(peer));
  });
}

// Rank 1's device is busy, so that the transfer, which rank 0 has launched, does not end.
TEST(NcclTransport, KeepsTheMemoryOfASendWhileItIsLeaving) {
  std::atomic<bool> looked = false;
  OnTwoDevices([&](NcclTransport& transport, at::Device device) {
    const at::Tensor values = Numbers(100, device);
    if (transport.rank() == 1) {
      sim::Gate gate(sim::CurrentQueue(1));
      transport.WaitFor(transport.Recv(0, 0, MakeBundle({values})), {});
      while (!looked) transport.Pending();
      return;
    }
    Bundle bundle = MakeBundle({values});
    const std::weak_ptr<void> owner = bundle.owner;
    transport.WaitFor(transport.Send(1, 0, std::move(bundle)), {});
    transport.Pending();
    EXPECT_FALSE(owner.expired());
    looked = true;
    while (transport.Pending() > 0) {
    }
    EXPECT_TRUE(owner.expired());
  });
}

// Counts the calls in which a rank would hear that another one has failed.
struct Listening : WrappedTransport {
  using WrappedTransport::WrappedTransport;
  std::atomic<int> listened = 0;
  size_t Pending() override {
    ++listened;
    return WrappedTransport::Pending();
  }
};

TEST(NcclTransport, ListensToOthersUntilItsTransfersHaveEnded) {
  std::atomic<Listening*> first = nullptr;  // once it ends
  RunThreads(2, [&](Transport& inner) {
    const at::Device device("sim:" + std::to_string(inner.rank()));
    UseDevice(device);
    Listening listening(inner);
    NcclTransport transport(listening, device, {{{0, 1}}, {}});
    const at::Tensor values = Numbers(100, device);
    if (inner.rank() == 1) {
      sim::Gate gate(sim::CurrentQueue(1));
      transport.WaitFor(transport.Recv(0, 0, MakeBundle({values})), {});
      while (!first || first.load()->listened == 0) transport.Pending();
      return;
    }
    transport.WaitFor(transport.Send(1, 0, MakeBundle({values})), {});
    listening.listened = 0;
    first = &listening;
  });
}

// After the ranks have exchanged the ids, waits for rank 0 to say that it waits for its device.
struct Late : WrappedTransport {
  Late(Transport& inner, const std::atomic<StatusFile*>& first)
      : WrappedTransport(inner), first_(first) {}
  std::vector<std::string> AllGather(const std::string& bytes) override {
    std::vector<std::string> all = WrappedTransport::AllGather(bytes);
    while (rank() == 1 && first_.load()->Read().awaits.kind != Awaited::kDevice) Pending();
    return all;
  }

 private:
  const std::atomic<StatusFile*>& first_;
};

TEST(NcclTransport, SaysThatItWaitsWhileNcclDoes) {
  std::atomic<StatusFile*> first = nullptr;
  RunThreads(2, [&](Transport& inner) {
    const at::Device device("sim:" + std::to_string(inner.rank()));
    UseDevice(device);
    if (inner.rank() == 0) first = &inner.status();
    Late late(inner, first);
    const NcclTransport transport(late, device, {{{0, 1}}, {}});
    EXPECT_EQ(inner.status().Read().awaits, Awaited{});
  });
}

TEST(MeasureLinks, WaitsForTheReceiversDevice) {
  OnTwoDevices([](NcclTransport& transport, at::Device device) {
    auto measure = [&] { MeasureLink(transport, 0, 1, 1, 1 << 10, device); };
    auto waits = [&] { return transport.status().Read().awaits.kind == Awaited::kDevice; };
    if (transport.rank() == 0)
      measure();
    else
      EXPECT_TRUE(sim::Gate(sim::CurrentQueue(1)).StopsHost(measure, waits));
  });
}

}  // namespace
}  // namespace pipewright
