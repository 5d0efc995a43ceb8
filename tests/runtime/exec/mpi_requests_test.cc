// Sends messages from each rank to itself, piece by piece, and checks what each operation notes.
#include "runtime/transport/mpi_requests.h"

#include <gtest/gtest.h>

#include <cstring>
#include <memory>
#include <string>
#include <utility>
#include <vector>

namespace pipewright {
namespace {

using Memory = std::shared_ptr<std::vector<std::string>>;  // a text for each region

Memory Texts(std::vector<std::string> texts) {
  return std::make_shared<std::vector<std::string>>(std::move(texts));
}
Memory Room(const std::vector<size_t>& bytes) {
  Memory memory = Texts({});
  for (size_t count : bytes) memory->emplace_back(count, '?');
  return memory;
}

std::shared_ptr<MpiOperation> Operation(bool send, const Memory& memory, int tag = 3) {
  auto op = std::make_shared<MpiOperation>();
  op->send = send, op->peer = 0, op->tag = tag;
  for (std::string& text : *memory) op->bundle.regions.push_back({text.data(), text.size()});
  op->bundle.owner = memory;
  return op;
}

std::string MpiText(int code) {
  char text[MPI_MAX_ERROR_STRING];
  int length = 0;
  MPI_Error_string(code, text, &length);
  return std::string(text, static_cast<size_t>(length));
}

class MpiRequestsTest : public testing::Test {
 protected:
  void SetUp() override {
    MPI_Comm_dup(MPI_COMM_SELF, &comm_);
    MPI_Comm_set_errhandler(comm_, MPI_ERRORS_RETURN);
    UsePieces(1 << 20);
  }
  void TearDown() override {
    requests_ = nullptr;
    MPI_Comm_free(&comm_);
  }
  void UsePieces(size_t piece_bytes, size_t background_bytes = 4000) {
    requests_ = std::make_unique<MpiRequests>(comm_, piece_bytes, background_bytes);
  }

  std::shared_ptr<MpiOperation> Post(std::shared_ptr<MpiOperation> op) {
    requests_->Queue(op);
    requests_->PostQueued();
    return op;
  }
  std::shared_ptr<MpiOperation> Send(const Memory& memory) { return Post(Operation(true, memory)); }
  std::shared_ptr<MpiOperation> Receive(const Memory& memory) {
    return Post(Operation(false, memory));
  }
  // Returns true if the operation completes after some progress.
  bool Completes(MpiOperation& op, int tests = 1 << 22) {
    for (int i = 0; i < tests; ++i)
      if (requests_->Advance(op)) return op.done;
    return false;
  }
  bool IsStuck(MpiOperation& op) { return !Completes(op, 1000); }

  MPI_Comm comm_ = MPI_COMM_NULL;
  std::unique_ptr<MpiRequests> requests_;
};

TEST(CheckMpi, ThrowsTheTextOfTheError) {
  CheckMpi(MPI_SUCCESS, "MPI_Send");
  try {
    CheckMpi(MPI_ERR_TAG, "MPI_Send");
    FAIL() << "accepted";
  } catch (const Error& e) {
    EXPECT_EQ(e.what(), "MPI_Send: " + MpiText(MPI_ERR_TAG));
  }
}

// The last piece is shorter than the others, and empty if these are all.
TEST_F(MpiRequestsTest, RegionsTravelInPieces) {
  UsePieces(8);
  const std::vector<std::string> texts = {"", "1234567", "12345678", "abcdefghijklmnopqrst"};
  const Memory room = Room({0, 7, 8, 20});
  const auto receive = Receive(room), send = Send(Texts(texts));
  EXPECT_EQ(receive->sizes, (std::vector<size_t>{0, 7, 8, 0, 8, 8, 4}));
  EXPECT_EQ(receive->regions, (std::vector<size_t>{0, 1, 2, 2, 3, 3, 3}));
  EXPECT_EQ(receive->bytes, 35u);
  EXPECT_EQ(receive->requests.size(), 7u);
  EXPECT_EQ(send->requests.size(), 7u);
  EXPECT_TRUE(Completes(*receive));
  EXPECT_TRUE(Completes(*send));
  EXPECT_EQ(*room, texts);
  for (const auto& op : {receive, send}) {
    EXPECT_EQ(op->error, "");
    EXPECT_EQ(op->left, 0u);
    for (MPI_Request request : op->requests) EXPECT_TRUE(request == MPI_REQUEST_NULL);
    EXPECT_EQ(op->bundle.owner, nullptr);  // it holds no memory any more
  }
  EXPECT_EQ(receive->arrived, 35u);
}

TEST_F(MpiRequestsTest, AMessageWithoutRegionsIsThereAtOnce) {
  EXPECT_TRUE(Send(Texts({}))->done);
  EXPECT_TRUE(Receive(Texts({}))->done);
  EXPECT_EQ(requests_->pending(), 0u);
}

TEST_F(MpiRequestsTest, StartInTheOrderInWhichTheyAreQueued) {
  std::vector<Memory> rooms;
  for (int i = 0; i < 3; ++i) {
    rooms.push_back(Room({1}));
    requests_->Queue(Operation(false, rooms.back()));
  }
  EXPECT_EQ(requests_->pending(), 0u);  // queued, not started
  EXPECT_FALSE(requests_->AdvanceAll());
  requests_->PostQueued();
  requests_->PostQueued();  // starts nothing twice
  EXPECT_EQ(requests_->pending(), 3u);
  EXPECT_FALSE(requests_->AdvanceAll());
  for (const char* text : {"a", "b", "c"}) requests_->Queue(Operation(true, Texts({text})));
  requests_->PostQueued();
  for (int i = 0; i < 1 << 22 && requests_->pending() > 0; ++i) continue;
  EXPECT_EQ(requests_->pending(), 0u);
  for (int i = 0; i < 3; ++i)
    EXPECT_EQ(rooms[i]->at(0), std::string(1, static_cast<char>('a' + i)));
}

TEST_F(MpiRequestsTest, ASendWaitsForItsReceiveWithTheLargestRegion) {
  const std::vector<std::string> texts = {"a", std::string(100, 'b'), "cd"};
  const auto send = Send(Texts(texts));
  EXPECT_TRUE(IsStuck(*send));
  EXPECT_EQ(requests_->pending(), 1u);
  EXPECT_TRUE(send->requests[1] != MPI_REQUEST_NULL);
  const Memory room = Room({1, 100, 2});
  const auto receive = Receive(room);
  EXPECT_TRUE(Completes(*receive));
  EXPECT_TRUE(Completes(*send));
  EXPECT_EQ(*room, texts);
}

// The sender announces a region in the inbox by an empty message, which the offer receives.
TEST_F(MpiRequestsTest, RegionsOfTheInboxAreOnlyAnnounced) {
  Offer offer{};
  auto announced = [&](bool taken) {
    auto send = Operation(true, Texts({"small", std::string(16, 'b')}));
    send->put = {false, true};
    Post(send);
    EXPECT_TRUE(Completes(*send));
    offer.state = taken ? 7 : 6;
    const Memory room = Room({5, 16});
    auto receive = Operation(false, room);
    receive->offers = {nullptr, &offer};
    Post(receive);
    EXPECT_TRUE(Completes(*receive));
    EXPECT_EQ(offer.state.load(), 0u);  // it is not valid any more
    EXPECT_EQ(room->at(0), "small");
    EXPECT_EQ(room->at(1), std::string(16, '?'));  // which the sender has not written to here
    EXPECT_EQ(receive->arrived, taken ? 21u : 5u);
    return receive->error;
  };
  EXPECT_EQ(announced(true), "");
  EXPECT_EQ(announced(false), "a message of another length arrived where 21 bytes were expected");
}

TEST_F(MpiRequestsTest, MessagesOfAnotherLengthAreErrors) {
  auto error = [&](size_t sent, size_t expected) {
    const auto send = Send(Texts({std::string(sent, 'x')}));
    const auto receive = Receive(Room({expected}));
    EXPECT_TRUE(Completes(*receive));
    EXPECT_TRUE(Completes(*send));
    EXPECT_EQ(send->error, "");
    EXPECT_EQ(requests_->pending(), 0u);
    return receive->error;
  };
  EXPECT_EQ(error(8, 8), "");
  EXPECT_EQ(error(8, 12), "a message of 8 bytes arrived where 12 bytes were expected");
  EXPECT_EQ(error(0, 1), "a message of 0 bytes arrived where 1 bytes were expected");
  EXPECT_EQ(error(12, 8), "a message longer than the 8 bytes expected arrived");
  // In pieces, the first that is too short ends the receive.
  UsePieces(4);
  const auto receive = Receive(Room({12})), send = Send(Texts({"123456"}));
  EXPECT_TRUE(Completes(*receive));
  EXPECT_TRUE(Completes(*send));
  EXPECT_EQ(receive->error, "a message of another length arrived where 12 bytes were expected");
  EXPECT_EQ(receive->left, 2u);
  EXPECT_EQ(requests_->pending(), 0u);
  // Its memory stays for the pieces that may still come.
  MPI_Send("7890", 4, MPI_BYTE, 0, 3, comm_);
  MPI_Send("", 0, MPI_BYTE, 0, 3, comm_);
  MPI_Waitall(4, receive->requests.data(), MPI_STATUSES_IGNORE);
}

TEST_F(MpiRequestsTest, WhatMpiRefusesToStartIsAnError) {
  auto receive = Operation(false, Room({5000}));
  receive->peer = 1;  // of one rank
  Post(receive);
  EXPECT_TRUE(receive->done);
  EXPECT_EQ(receive->error, "MPI_Irecv: " + MpiText(MPI_ERR_RANK));
  const auto send = Post(Operation(true, Texts({std::string(5000, 'x')}), -9));
  EXPECT_TRUE(send->done);
  EXPECT_EQ(send->error, "MPI_Isend: " + MpiText(MPI_ERR_TAG));
  EXPECT_EQ(requests_->pending(), 0u);
  EXPECT_FALSE(requests_->background());
}

TEST_F(MpiRequestsTest, OnlyLargeTransfersNeedTheBackground) {
  UsePieces(1 << 20, 10);
  EXPECT_FALSE(requests_->background());
  const auto small = Receive(Room({4, 6}));
  EXPECT_FALSE(requests_->background());
  auto large = Operation(false, Room({5, 6}), 4);
  requests_->Queue(large);
  EXPECT_TRUE(requests_->background());  // from the start
  requests_->PostQueued();
  Send(Texts({"1234", "123456"}));
  EXPECT_TRUE(Completes(*small));
  EXPECT_TRUE(requests_->background());
  const auto send = Post(Operation(true, Texts({"12345", "123456"}), 4));
  EXPECT_TRUE(Completes(*large));
  EXPECT_TRUE(Completes(*send));
  EXPECT_FALSE(requests_->background());
}

TEST_F(MpiRequestsTest, DroppedReceivesTakeNoMessageAndKeepTheirMemory) {
  Memory room = Room({4});
  const std::weak_ptr<std::vector<std::string>> dropped = room;
  Receive(std::exchange(room, nullptr));
  EXPECT_EQ(requests_->pending(), 1u);
  requests_->Drop();
  EXPECT_EQ(requests_->pending(), 0u);
  EXPECT_FALSE(dropped.expired());  // MPI might still write to it
  room = Room({4});
  const auto receive = Receive(room), send = Send(Texts({"text"}));
  EXPECT_TRUE(Completes(*receive));
  EXPECT_TRUE(Completes(*send));
  EXPECT_EQ(room->at(0), "text");
  EXPECT_EQ(dropped.lock()->at(0), "????");
}

}  // namespace
}  // namespace pipewright
