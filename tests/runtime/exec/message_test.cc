// Tests headers of messages, and how a difference is described.
#include "runtime/exec/message.h"

#include <gtest/gtest.h>

#include <vector>

namespace pipewright {
namespace {

TEST(MessageHeader, SumsTheRegionsOfABundle) {
  char memory[16];
  const Bundle bundle{{{memory, 3}, {memory + 4, 0}, {memory + 8, 7}}, nullptr};
  const MessageHeader header = HeaderOf(bundle, 99, 4, 5, true);
  EXPECT_EQ(header, (MessageHeader{99, 10, 4, 5, 1, 3}));
  EXPECT_EQ(HeaderOf(Bundle{}, 1, 0, 0, false), (MessageHeader{1, 0, 0, 0, 0, 0}));
}

TEST(MessageHeader, TravelsAsAMessageThatKeepsItAlive) {
  auto header = std::make_shared<MessageHeader>(MessageHeader{1, 2, 3, 4, 0, 1});
  std::weak_ptr<MessageHeader> alive = header;
  Bundle bundle = HeaderBundle(std::move(header));
  ASSERT_EQ(bundle.regions.size(), 1u);
  EXPECT_EQ(bundle.regions[0].bytes, sizeof(MessageHeader));
  EXPECT_EQ(bundle.regions[0].data, alive.lock().get());
  bundle = {};
  EXPECT_TRUE(alive.expired());
}

// A difference in any one field is noticed, and another plan is named before anything else.
TEST(MessageHeader, NamesTheDifference) {
  const MessageHeader expected{7, 64, 2, 5, 0, 1};
  EXPECT_EQ(CompareHeaders(expected, expected), "");
  std::vector<MessageHeader> others(6, expected);
  others[0].bytes = 65, others[1].edge = 3, others[2].microbatch = 6, others[3].backward = 1;
  others[4].parts = 2, others[5].plan = 8, others[5].edge = 9;
  for (size_t i = 0; i < 5; ++i) {
    const std::string text = CompareHeaders(others[i], expected);
    EXPECT_TRUE(text.starts_with("arrived: ")) << text;
    const size_t middle = text.find("; expected: values of edge 2, microbatch 5, ");
    ASSERT_NE(middle, std::string::npos) << text;
    EXPECT_NE(text.substr(9, middle - 9), text.substr(middle + 12)) << "both sides read the same";
  }
  EXPECT_TRUE(CompareHeaders(others[3], expected)
                  .starts_with("arrived: gradients of edge 2, microbatch 5"));
  EXPECT_EQ(CompareHeaders(others[5], expected), "the sender runs another plan");
}

}  // namespace
}  // namespace pipewright
