#include "formats/weights/shared_tensors.h"

#include <gtest/gtest.h>

#include "base/error.h"

namespace pipewright {
namespace {

using Names = std::vector<std::string>;
using Groups = std::vector<Names>;
using Kept = std::map<std::string, Names>;

// Elements [begin, end) of a buffer of `size` floats, as a slice with a step of 1.
TensorExtent Slice(const std::string& name, const std::string& buffer, uint64_t size,
                   uint64_t begin, uint64_t end) {
  return {name, buffer, size * 4, begin * 4, end * 4, (end - begin) * 4};
}
TensorExtent Whole(const std::string& name, const std::string& buffer, uint64_t size = 16) {
  return Slice(name, buffer, size, 0, size);
}

TEST(SharedTensors, CompleteCoversItsStorage) {
  EXPECT_TRUE(IsComplete(Whole("a", "A", 9)));
  EXPECT_FALSE(IsComplete(Slice("a", "A", 9, 0, 1)));
  EXPECT_FALSE(IsComplete({"a[::2]", "A", 64, 0, 60, 32}));
  EXPECT_FALSE(IsComplete({"a[:1].expand(16)", "A", 64, 0, 4, 64}));
  EXPECT_TRUE(IsComplete({"meta", "", 0, 0, 0, 0}));
}

TEST(SharedTensors, GroupsAreThoseThatOverlap) {
  EXPECT_EQ(SharedGroups({Slice("B", "A", 9, 0, 2), Slice("C", "A", 9, 2, 9)}),
            (Groups{{"B"}, {"C"}}));
  EXPECT_EQ(SharedGroups({Slice("B", "A", 9, 0, 2), Slice("C", "A", 9, 1, 9)}),
            (Groups{{"B", "C"}}));
  EXPECT_EQ(
      SharedGroups({Slice("B", "A", 9, 0, 2), Slice("C", "A", 9, 2, 9), Slice("D", "A", 9, 0, 1)}),
      (Groups{{"B", "D"}, {"C"}}));
  // Parts of a whole that do not overlap.
  EXPECT_EQ(SharedGroups(
                {Whole("A", "A", 100), Slice("B", "A", 100, 8, 16), Slice("C", "A", 100, 32, 48)}),
            (Groups{{"A", "B", "C"}}));
  // The same pointer with another storage size is different memory.
  EXPECT_EQ(SharedGroups({Whole("a", "A", 4), Whole("b", "A", 5)}), (Groups{{"a"}, {"b"}}));
  // Tensors without memory or without elements share nothing.
  EXPECT_EQ(SharedGroups({{"a", "", 0, 0, 0, 0},
                          {"b", "", 0, 0, 0, 0},
                          Whole("c", "A"),
                          Slice("d", "A", 16, 3, 3)}),
            (Groups{{"a"}, {"b"}, {"c"}, {"d"}}));
}

TEST(SharedTensors, TheFirstCompleteNameIsKept) {
  std::vector<TensorExtent> model = {Whole("b.weight", "W"), Whole("a.weight", "W"),
                                     Whole("b.bias", "B", 4), Whole("a.bias", "B", 4),
                                     Whole("c", "C")};
  EXPECT_EQ(NamesToKeep(model), (Kept{{"a.bias", {"b.bias"}}, {"a.weight", {"b.weight"}}}));
  EXPECT_EQ(NamesToKeep(model, {"b.weight"}),
            (Kept{{"a.bias", {"b.bias"}}, {"b.weight", {"a.weight"}}}));
  EXPECT_EQ(NamesToKeep(model, {}, {"a.bias", "a.weight", "b.weight"}),
            (Kept{{"b.bias", {"a.bias"}}, {"a.weight", {"b.weight"}}}));
  std::map<std::string, std::string> metadata{{"b.bias", "mine"}};
  RecordDropped(NamesToKeep(model), metadata);
  EXPECT_EQ(metadata,
            (std::map<std::string, std::string>{{"b.bias", "mine"}, {"b.weight", "a.weight"}}));
  // "a" would be first but is a part.
  EXPECT_EQ(NamesToKeep({Slice("a", "A", 16, 8, 16), Whole("z", "A")}), (Kept{{"z", {"a"}}}));
}

TEST(SharedTensors, AGroupWithoutAnOwnerIsRefused) {
  EXPECT_THROW(NamesToKeep({Slice("a", "A", 100, 0, 50), Slice("b", "A", 100, 25, 100)}), Error);
  // A slice alone is written as its own bytes, and so are slices that do not overlap.
  EXPECT_EQ(NamesToKeep({Slice("a", "A", 100, 0, 1)}), Kept{});
  EXPECT_EQ(NamesToKeep({Slice("a", "A", 100, 0, 1), Slice("b", "A", 100, 1, 100)}), Kept{});
}

TEST(SharedTensors, LoadReportsWhatTheReferenceReports) {
  std::vector<TensorExtent> shared = {Whole("a.weight", "W"), Whole("a.bias", "B", 4),
                                      Whole("b.weight", "W"), Whole("b.bias", "B", 4)};
  std::vector<TensorExtent> apart = {Whole("a.weight", "W"), Whole("a.bias", "B", 4),
                                     Whole("b.weight", "V"), Whole("b.bias", "D", 4)};
  auto report = [](const std::vector<TensorExtent>& model, const Names& file) {
    LoadReport r = MatchNames(model, file);
    return std::pair(r.missing, r.unexpected);
  };
  using P = std::pair<Names, Names>;
  EXPECT_EQ(report(shared, {"a.weight", "a.bias"}), P({}, {}));
  EXPECT_EQ(report(shared, {"b.weight", "b.bias"}), P({}, {}));
  EXPECT_EQ(report(apart, {"a.weight", "a.bias"}), P({"b.bias", "b.weight"}, {}));
  EXPECT_EQ(report(shared, {"a.weight", "a.bias", "b.weight", "b.bias"}),
            P({}, {"b.bias", "b.weight"}));
  EXPECT_EQ(report(shared, {"a.weight", "x"}), P({"a.bias"}, {"x"}));
}

}  // namespace
}  // namespace pipewright
