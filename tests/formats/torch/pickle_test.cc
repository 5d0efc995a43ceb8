#include "formats/torch/pickle.h"

#include <gtest/gtest.h>

#include "tests/error_text.h"

namespace pipewright {

using namespace std::string_literals;

namespace {

Pickle Parse(const std::string& bytes) {
  return ParsePickle(bytes, "f", [](const std::string& name) {
    return name == "collections OrderedDict" || name == "torch FloatStorage";
  });
}

std::string PickleError(const std::string& bytes) {
  return ErrorOf([&] { Parse(bytes); });
}

}  // namespace

// pickle.dumps({"a": [1, -2, True, None], "b": (0.5,)}, protocol=2)
const std::string kPlain =
    "\x80\x02}q\0(X\x01\0\0\0aq\x01]q\x02(K\x01J\xFE\xFF\xFF\xFF\x88NeX\x01\0\0\0bq\x03"
    "G\x3F\xE0\0\0\0\0\0\0\x85q\x04u."s;

TEST(Pickle, ReadsPlainData) {
  const Pickle pickle = Parse(kPlain);
  const PickleNode& root = pickle[pickle.root];
  ASSERT_EQ(root.kind, PickleNode::kDict);
  ASSERT_EQ(root.items.size(), 4u);
  EXPECT_EQ(pickle[root.items[0]].text, "a");
  const PickleNode& list = pickle[root.items[1]];
  ASSERT_EQ(list.kind, PickleNode::kList);
  ASSERT_EQ(list.items.size(), 4u);
  EXPECT_EQ(pickle[list.items[0]].number, 1);
  EXPECT_EQ(pickle[list.items[1]].number, -2);
  EXPECT_EQ(pickle[list.items[2]].kind, PickleNode::kBool);
  EXPECT_EQ(pickle[list.items[3]].kind, PickleNode::kNone);
  const PickleNode& tuple = pickle[root.items[3]];
  ASSERT_EQ(tuple.kind, PickleNode::kTuple);
  EXPECT_EQ(pickle[tuple.items.at(0)].real, 0.5);
}

TEST(Pickle, ReportsItsSize) { EXPECT_EQ(Parse(kPlain + "more").size, kPlain.size()); }

TEST(Pickle, EveryCutIsRefused) {
  for (size_t cut = 0; cut < kPlain.size(); ++cut)
    EXPECT_NE(PickleError(kPlain.substr(0, cut)), "") << cut;
}

TEST(Pickle, CallsAreDescribedAndNotMade) {
  const Pickle pickle = Parse(
      "\x80\x02"
      "ctorch\nFloatStorage\n)R."s);
  const PickleNode& root = pickle[pickle.root];
  ASSERT_EQ(root.kind, PickleNode::kCall);
  EXPECT_EQ(pickle[root.items.at(0)].text, "torch FloatStorage");
  const Pickle ordered = Parse(
      "\x80\x02"
      "ccollections\nOrderedDict\n)R."s);
  EXPECT_EQ(ordered[ordered.root].kind, PickleNode::kDict);
}

TEST(Pickle, OtherGlobalsAreRefused) {
  EXPECT_NE(PickleError("\x80\x02"
                        "cos\nsystem\nX\x02\0\0\0ls\x85R."s)
                .find("system"),
            std::string::npos);
}

TEST(Pickle, PersistentObjectsKeepTheirIdentifier) {
  const Pickle pickle = Parse("\x80\x02X\x01\0\0\0k\x85Q."s);
  const PickleNode& root = pickle[pickle.root];
  ASSERT_EQ(root.kind, PickleNode::kPersistent);
  EXPECT_EQ(pickle[root.items.at(0)].kind, PickleNode::kTuple);
}

TEST(Pickle, UnknownInstructionsNameTheByte) {
  EXPECT_EQ(PickleError("\x80\x02i."s),
            "f: byte 2: an instruction (105) that does not describe plain data; nothing was "
            "executed");
}

}  // namespace pipewright
