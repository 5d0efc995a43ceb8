// Runs whole jobs through a transport that records where messages are received.
#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <functional>
#include <map>
#include <set>
#include <tuple>

#include "base/files/read_file.h"
#include "base/json.h"
#include "compiler/trace.h"
#include "formats/weights/safetensors.h"
#include "plan/actions.h"
#include "plan/plan.h"
#include "runtime/commands/eval.h"
#include "runtime/commands/infer.h"
#include "runtime/commands/train.h"
#include "runtime/transport/thread_transport.h"
#include "tensors/tensor_file.h"

namespace pipewright {
namespace {

// The addresses and sizes of one message's regions.
using Place = std::vector<std::pair<void*, size_t>>;

// The messages that a rank received: by tag of the plan, in order.
using Messages = std::map<std::pair<int, int>, std::vector<Place>>;  // (peer, tag)

struct Places {
  Messages messages;
  std::set<int> sent_on;  // peers whose messages were sent on from the receive buffer
};

// Forwards everything, and records each receive of the plan.
class NotingTransport : public WrappedTransport {
 public:
  explicit NotingTransport(Transport& inner, bool own_memory)
      : WrappedTransport(inner), own_memory_(own_memory) {}
  std::shared_ptr<void> Memory(size_t bytes) override {
    if (!own_memory_) return nullptr;
    ++asked;
    return {std::aligned_alloc(4096, (bytes + 4095) / 4096 * 4096), std::free};
  }
  Token Send(int peer, int tag, Bundle bundle) override {
    for (const auto& [from, messages] : places.messages)
      for (const Place& place : messages)
        if (!bundle.regions.empty() && bundle.regions[0].data == place[0].first)
          places.sent_on.insert(from.first);
    return WrappedTransport::Send(peer, tag, std::move(bundle));
  }
  Token Recv(int peer, int tag, Bundle bundle) override {
    if (in_step_ && tag <= max_tag() - kReservedTags) {
      Place place;
      for (const Region& region : bundle.regions) place.emplace_back(region.data, region.bytes);
      places.messages[{peer, tag}].push_back(std::move(place));
    }
    return WrappedTransport::Recv(peer, tag, std::move(bundle));
  }
  void BeginAction(int64_t step, int entry) override {
    in_step_ = true;
    WrappedTransport::BeginAction(step, entry);
  }

  Places places;
  int asked = 0;

 private:
  const bool own_memory_;
  bool in_step_ = false;
};

// A skip over all stages, which is sent transposed, and an output of the model that is a view of a
// value received by the last stage.
struct NetImpl : torch::nn::Module {
  NetImpl() {
    embed = register_module("embed", torch::nn::Embedding(256, 16));
    blocks = register_module("blocks", torch::nn::ModuleList());
    for (int i = 0; i < 3; ++i) blocks->push_back(torch::nn::Linear(16, 16));
    head = register_module("head", torch::nn::Linear(16, 256));
  }
  std::tuple<torch::Tensor, torch::Tensor> forward(torch::Tensor tokens) {
    torch::Tensor x = embed(tokens), skipped = x.sin().transpose(1, 2);
    for (const auto& block : *blocks) {
      pipe_split();
      x = x + torch::tanh(block->as<torch::nn::Linear>()->forward(x));
    }
    return {head(x + skipped.transpose(1, 2)), skipped.transpose(1, 2)};
  }
  torch::nn::Embedding embed{nullptr};
  torch::nn::ModuleList blocks{nullptr};
  torch::nn::Linear head{nullptr};
};
TORCH_MODULE(Net);

class ReceiveBuffers : public testing::Test {
 protected:
  static constexpr int kRanks = 4;

  void SetUp() override {
    std::string name = "/tmp/receive_buffers_XXXXXX";
    folder_ = mkdtemp(name.data());
    torch::manual_seed(3);
    torch::set_num_threads(1);
    Model model = Trace(net_, {torch::zeros({2, 8}, torch::kLong)}, {{"tokens"}});
    CompileOptions options;
    options.output = folder_ + "/net.pkg";
    manifest_ = Compile(model, options).manifest;
    ASSERT_EQ(manifest_.modules.size(), static_cast<size_t>(kRanks));
    std::string text;
    for (int i = 0; i < 1200; ++i) text += static_cast<char>(i * i % 251);
    WriteFile(folder_ + "/text", text);
    run_.package = options.output;
    run_.job = folder_ + "/job.json";
  }
  void TearDown() override { std::filesystem::remove_all(folder_); }

  // Returns what each rank received.
  std::vector<Places> Run(const std::function<void(const RunOptions&, Transport&)>& command,
                          Json job, bool own_memory = false) {
    job["data"] = {{"tokens", folder_ + "/text"}, {"sequence_length", 8}, {"shuffle", false}};
    job["loss"] = "cross_entropy";
    job["optimizer"] = {{"type", "sgd"}, {"lr", 0.1}};
    WriteFile(run_.job, FormatJson(job));
    std::vector<Places> places(kRanks);
    RunThreads(kRanks, [&](Transport& inner) {
      NotingTransport transport(inner, own_memory);
      command(run_, transport);
      places[static_cast<size_t>(inner.rank())] = transport.places;
      EXPECT_EQ(transport.asked > 0, own_memory && inner.rank() > 0);
    });
    return places;
  }

  // Returns where the messages of `peer` before step `end` were received.
  static std::set<void*> Addresses(const Places& places, int peer, size_t end) {
    std::set<void*> addresses;
    for (const auto& [from, messages] : places.messages)
      for (size_t i = 0; from.first == peer && i < std::min(end, messages.size()); ++i)
        for (const auto& [address, bytes] : messages[i]) addresses.insert(address);
    return addresses;
  }

  // Returns the number of buffers that a run's plan gives each edge and direction of each rank.
  std::vector<std::map<std::pair<int, bool>, int>> Slots(const Job& job, bool training) {
    Plan plan;
    RunThreads(kRanks, [&](Transport& transport) {
      Session session(transport);
      session.job = job;
      SessionOptions options;
      options.package = run_.package;
      options.training = training;
      session.Open(options);
      if (transport.rank() == 0) plan = session.run.plan;
    });
    std::vector<std::map<std::pair<int, bool>, int>> slots(kRanks);
    for (size_t r = 0; r < plan.ranks.size(); ++r)
      for (const Action& a : plan.ranks[r])
        if (IsRecv(a.kind)) {
          int& most = slots[r][{PeerOf(a), a.kind == ActionKind::kRecvBackward}];
          most = std::max(most, a.slot + 1);
        }
    return slots;
  }

  std::string folder_;
  Net net_;
  Manifest manifest_;
  RunOptions run_;
};

constexpr size_t kSettled = 4;  // steps until every module has its final body

// If a stage sends a received value on, such as the gradient of a skip, that block is in use until
// the message has left, and the next message may be received in another one.
TEST_F(ReceiveBuffers, TrainingReceivesAtTheSameAddressesInEveryStep) {
  for (const char* schedule : {"gpipe", "1f1b", "zb1p"})
    for (const char* body : {"autograd", "lists"})
      for (bool recompute : {false, true}) {
        SCOPED_TRACE(std::string(schedule) + ", " + body + (recompute ? ", recompute" : ""));
        constexpr size_t kSteps = 8, kMicrobatches = 6;
        const std::vector<Places> ranks =
            Run(Train, {{"schedule", schedule}, {"body", body}, {"recompute", recompute},
                        {"microbatches", kMicrobatches}, {"microbatch_size", 2},
                        {"steps", kSteps}});
        for (size_t rank = 0; rank < ranks.size(); ++rank) {
          const Places& places = ranks[rank];
          ASSERT_FALSE(places.messages.empty());
          for (const auto& [from, messages] : places.messages) {
            const int peer = from.first, tag = from.second;
            ASSERT_EQ(messages.size(), kSteps);  // one tag per edge, direction and microbatch
            const std::set<void*> addresses = Addresses(places, peer, kSteps);
            if (places.sent_on.count(peer)) {
              EXPECT_GT(peer, static_cast<int>(rank));  // only gradients
              EXPECT_LE(addresses.size(), kMicrobatches * messages[0].size());
              continue;
            }
            for (size_t step = kSettled; step < kSteps; ++step)
              EXPECT_EQ(messages[step], messages[kSettled]) << "from " << peer << ", tag " << tag;
            EXPECT_EQ(addresses, Addresses(places, peer, kSettled));
          }
        }
      }
}

// Values that a stage keeps for its backward are stored separately: never more than are in flight.
TEST_F(ReceiveBuffers, MemoryIsBoundedByWhatIsUnderWay) {
  constexpr int kMicrobatches = 24;
  auto blocks = [&](const char* schedule, int microbatches) {
    std::vector<std::map<int, std::set<void*>>> found;  // the first value's, by rank and peer
    for (const Places& places :
         Run(Train, {{"schedule", schedule}, {"microbatches", microbatches},
                     {"microbatch_size", 1}, {"steps", 3}})) {
      found.emplace_back();
      for (const auto& [from, messages] : places.messages)
        for (const Place& place : messages) found.back()[from.first].insert(place[0].first);
    }
    return found;
  };
  const auto all = blocks("gpipe", kMicrobatches), few = blocks("1f1b", 12);
  const auto more = blocks("1f1b", kMicrobatches);
  // gpipe has all microbatches in flight; 1f1b as many as stages follow, and those being sent.
  EXPECT_GE(all[1].at(0).size(), static_cast<size_t>(kMicrobatches));
  for (int rank = 1; rank < kRanks; ++rank) {
    EXPECT_LE(few[rank].at(rank - 1).size(), 8u) << "rank " << rank;
    EXPECT_EQ(more[rank].at(rank - 1).size(), few[rank].at(rank - 1).size()) << "rank " << rank;
  }
}

// Forward only, the plan's buffers suffice, regardless of the number of microbatches.
TEST_F(ReceiveBuffers, ForwardOnlyHasThePlansBuffersAndNoMore) {
  for (bool own_memory : {false, true}) {
    const std::vector<Places> ranks =
        Run(Evaluate, {{"microbatches", 30}, {"microbatch_size", 1}}, own_memory);
    Job job;
    job.microbatches = 30;
    job.schedule = "gpipe";
    const auto slots = Slots(job, false);
    for (int rank = 1; rank < kRanks; ++rank) {
      std::map<int, std::set<void*>> blocks;  // by peer
      size_t messages = 0;
      for (const auto& [from, places] : ranks[rank].messages)
        for (const Place& place : places) blocks[from.first].insert(place[0].first), ++messages;
      EXPECT_GT(messages, 100u);
      for (const auto& [peer, addresses] : blocks)
        EXPECT_EQ(addresses.size(), static_cast<size_t>(slots[rank].at({peer, false})))
            << "rank " << rank << " from " << peer;
    }
  }
}

// Blocks of the largest size do not move; others grow, and one may rest for a while and grow late.
// So the test counts those blocks, by peer, in a run that validates and in one that does not.
TEST_F(ReceiveBuffers, TrainingThatValidatesUsesTheSameBuffers) {
  constexpr size_t kMicrobatches = 6;
  Json job = {{"schedule", "1f1b"}, {"body", "autograd"},
              {"microbatches", kMicrobatches}, {"minibatch_size", 9}, {"partial", true},
              {"steps", 40}};
  const std::vector<Places> plain = Run(Train, job);
  job["validation"] = {{"data", {{"tokens", folder_ + "/text"}, {"sequence_length", 8}}},
                       {"every", 3}, {"steps", 2}};
  const std::vector<Places> validated = Run(Train, job);
  auto count = [](const Places& places) {
    std::map<int, size_t> largest, messages;
    for (const auto& [from, all] : places.messages)
      for (const Place& place : all) {
        largest[from.first] = std::max(largest[from.first], place[0].second);
        ++messages[from.first];
      }
    std::map<int, std::set<void*>> blocks;
    for (const auto& [from, all] : places.messages)
      for (const Place& place : all)
        if (place[0].second == largest[from.first]) blocks[from.first].insert(place[0].first);
    std::map<int, std::pair<size_t, size_t>> counts;
    for (const auto& [peer, of_peer] : blocks) counts[peer] = {of_peer.size(), messages[peer]};
    return counts;
  };
  for (size_t rank = 1; rank < validated.size(); ++rank) {
    const auto without = count(plain[rank]), with = count(validated[rank]);
    ASSERT_EQ(without.size(), with.size());
    for (const auto& [peer, found] : with) {
      const auto& [blocks, messages] = without.at(peer);
      if (peer < static_cast<int>(rank)) {
        EXPECT_GT(found.second, messages);  // including those of the validation
      }
      const bool sent_on = validated[rank].sent_on.count(peer) > 0;
      EXPECT_LE(found.first, sent_on ? kMicrobatches : blocks)
          << "rank " << rank << " from " << peer;
    }
  }
}

// An output that is a view of a receive buffer keeps the next microbatch out of it. The last
// microbatch is smaller.
TEST_F(ReceiveBuffers, OutputsThatAreViewsStayWhatTheyWere) {
  constexpr int64_t kRows = 19;
  const torch::Tensor tokens =
      torch::arange(kRows * 8).mul(31).remainder(256).view({kRows, 8}).contiguous();
  run_.input = folder_ + "/in.safetensors";
  run_.output = folder_ + "/out.safetensors";
  run_.microbatches = 10;
  WriteSafetensors(run_.input, {{"tokens", "I64", {kRows, 8},
                                 {static_cast<const char*>(tokens.data_ptr()), tokens.nbytes()}}});
  const std::vector<Places> ranks = Run(Infer, {{"microbatches", 1}, {"microbatch_size", 1}});
  std::map<int, std::set<void*>> blocks;
  for (const auto& [from, messages] : ranks[kRanks - 1].messages)
    for (const Place& place : messages) blocks[from.first].insert(place[0].first);
  EXPECT_EQ(blocks.at(0).size(), 10u);  // the skip's, all of which are held
  EXPECT_LT(blocks.at(kRanks - 2).size(), 10u);
  const auto [scores, skipped] = net_->forward(tokens);
  const TensorFile file(run_.output);
  ASSERT_EQ(manifest_.outputs.size(), 2u);
  EXPECT_TRUE(torch::equal(file.Get(manifest_.values[manifest_.outputs[0]].name), scores));
  EXPECT_TRUE(torch::equal(file.Get(manifest_.values[manifest_.outputs[1]].name), skipped));
}

}  // namespace
}  // namespace pipewright
