#include "tensors/state_dict.h"

#include <filesystem>

#include "base/files/read_file.h"
#include "formats/weights/safetensors.h"
#include "tensors/offload_folder.h"
#include "tensors/offloaded_tensor.h"
#include "tests/error_text.h"
#include "tests/temp_folder.h"
#include "tests/tensors/models.h"

namespace pipewright {
namespace {

namespace fs = std::filesystem;

TEST(StateDict, HasTiedTensorsUnderEachName) {
  const TwoLinear tied(true);
  Names names;
  const NamedTensors tensors = StateDictOf(tied);
  for (const auto& [name, tensor] : tensors) names.push_back(name);
  EXPECT_EQ(names, (Names{"a.weight", "a.bias", "b.weight", "b.bias"}));
  const std::vector<OwnedTensor> owners = OwnersOf(tensors);
  ASSERT_EQ(owners.size(), 2u);
  EXPECT_EQ(owners[0].names, (Names{"a.weight", "b.weight"}));
  EXPECT_TRUE(owners[0].views.empty());
  EXPECT_EQ(Extents(tensors).size(), 4u);
}

TEST(StateDict, OwnersHaveTheirViewsByPlace) {
  const torch::Tensor whole = torch::arange(12.).view({3, 4}), row = whole[1], turned = whole.t();
  const std::vector<OwnedTensor> owners =
      OwnersOf({{"row", row}, {"turned", turned}, {"whole", whole}});
  ASSERT_EQ(owners.size(), 1u);
  ASSERT_EQ(owners[0].views.size(), 2u);
  const OwnedTensor& owned = owners[0];
  for (const OwnedTensor::View& view : owned.views)
    EXPECT_TRUE(torch::equal(view.tensor,
                             owned.owner.as_strided(view.sizes, view.strides,
                                                    owned.owner.storage_offset() + view.offset)));
  EXPECT_TRUE(CoversOwner(owned, turned) && CoversOwner(owned, whole));
  EXPECT_FALSE(CoversOwner(owned, row));
  // The owner takes this form when one of its views has a value.
  const torch::Tensor value = torch::rand({4, 3});
  const torch::Tensor owners_value = OwnersValue(owned, turned, value);
  Replace(owned, owners_value);
  EXPECT_TRUE(torch::equal(turned, value) && torch::equal(whole, value.t()));
  EXPECT_TRUE(torch::equal(row, value.t()[1]) && row.is_alias_of(whole));
  Empty(owned);
  EXPECT_TRUE(whole.is_meta() && row.is_meta() && turned.is_meta());
  EXPECT_EQ(row.sizes(), (std::vector<int64_t>{4}));
  const torch::Tensor memory = torch::arange(6.);
  EXPECT_NE(
      ErrorOf([&] { OwnersOf({{"a", memory.slice(0, 0, 4)}, {"b", memory.slice(0, 2, 6)}}); }),
      "");  // neither covers the other
  EXPECT_EQ(ErrorOf([] { CheckShape("w", {2, 3}, {3, 2}); }),
            "Trying to set a tensor of shape [3, 2] in \"w\" (which has shape [2, 3]), this looks "
            "incorrect.");
}

TEST(OffloadFolder, LivesAsLongAsItsProcessAndIsItsOwn) {
  const std::string parent = TempPath("parent");
  fs::create_directories(parent + "/pipewright-offload-dead00");  // nobody holds its lock
  fs::create_directories(parent + "/other");
  std::string path;
  {
    const auto folder = OffloadFolder::In(parent), again = OffloadFolder::In(parent);
    EXPECT_EQ(folder, again);
    path = fs::path(folder->NewPath()).parent_path().string();
    EXPECT_NE(folder->NewPath(), folder->NewPath());
    EXPECT_TRUE(fs::is_directory(path));
    EXPECT_EQ(fs::path(path).parent_path(), parent);
    EXPECT_FALSE(fs::exists(parent + "/pipewright-offload-dead00"));
  }
  EXPECT_FALSE(fs::exists(path));
  EXPECT_TRUE(fs::exists(parent + "/other"));
  WriteFile(parent + "/file", "");
  EXPECT_NE(ErrorOf([&] { OffloadFolder::In(parent + "/file"); }).find(parent + "/file"),
            std::string::npos);
  WriteBytes(parent + "/file", "new");
  EXPECT_EQ(ReadFile(parent + "/file"), "new");
  EXPECT_NE(ErrorOf([&] { WriteBytes(parent + "/none/file", "x"); }), "");
}

TEST(OffloadedTensor, HandlesAreOneTensorUntilTheLastIsGone) {
  const torch::Tensor values = torch::rand({2, 3});
  std::string file;
  {
    OffloadedTensor tensor = OffloadedTensor::From(values, "w", TempPath("handles")), copy = tensor;
    file = tensor.file();
    EXPECT_TRUE(tensor == copy && fs::exists(file));
    EXPECT_EQ(tensor.name(), "w");
    const torch::Tensor more = torch::rand({2, 3});
    copy.UpdateValues(more);
    EXPECT_TRUE(torch::equal(tensor, more));
    EXPECT_NE(ErrorOf([&] { tensor.UpdateValues(torch::rand({3, 2})); }), "");
    EXPECT_NE(ErrorOf([&] { tensor.UpdateValues(more.to(torch::kDouble)); }), "");
    EXPECT_TRUE(torch::equal(tensor, more));  // unchanged
    tensor.UpdateValues(torch::ones({4}, torch::kDouble), false, false);
    EXPECT_EQ(copy.sizes(), (std::vector<int64_t>{4}));
    EXPECT_EQ(copy.dtype(), torch::kDouble);
    const OffloadedTensor half = tensor.To(torch::kHalf);
    EXPECT_FALSE(half == tensor);
    EXPECT_TRUE(torch::equal(half, torch::ones({4}, torch::kHalf)));
    EXPECT_TRUE(tensor.To(torch::Device("cpu")) == tensor);
    std::string bytes;
    tensor.Stream([&](std::string_view piece) { bytes += piece; });
    const torch::Tensor ones = tensor;
    EXPECT_EQ(bytes, std::string(static_cast<const char*>(ones.data_ptr()), ones.nbytes()));
    file = tensor.file();
  }
  EXPECT_FALSE(fs::exists(file));
  EXPECT_NE(ErrorOf([] { OffloadedTensor::From(torch::ones({2}, torch::kMeta), "m"); }), "");
  EXPECT_NE(ErrorOf([] { OffloadedTensor::From(torch::ones({2}).to_sparse(), "s"); }), "");
}

TEST(OffloadedTensor, OfACheckpointIsNeverWrittenTo) {
  const std::string path = TempPath("checkpoint.safetensors");
  const torch::Tensor values = torch::rand({3});
  WriteSafetensors(path, {{"w", "F32", {3}, {static_cast<const char*>(values.data_ptr()), 12}}});
  const std::string before = ReadFile(path);
  {
    OffloadedTensor tensor = OffloadedTensor::In(path, "w");
    EXPECT_TRUE(torch::equal(tensor, values));
    EXPECT_EQ(tensor.file(), path);
    EXPECT_NE(ErrorOf([&] { tensor.UpdateValues(values + 1); }), "");
    EXPECT_TRUE(torch::equal(tensor.To(torch::kHalf), values.to(torch::kHalf)));
    EXPECT_EQ(tensor.To(torch::kHalf).file(), path);  // converted on each load
    EXPECT_NE(ErrorOf([&] { OffloadedTensor::In(path, "v"); }).find("\"v\""), std::string::npos);
  }
  EXPECT_EQ(ReadFile(path), before);
  EXPECT_FALSE(OffloadScope::Active());
  EXPECT_TRUE(std::holds_alternative<torch::Tensor>(LoadStateDict(path).at("w")));
  const OffloadScope scope;
  EXPECT_TRUE(OffloadScope::Active());
  const AnyTensor stored = LoadStateDict(path).at("w");
  EXPECT_TRUE(std::holds_alternative<OffloadedTensor>(stored));
  EXPECT_TRUE(torch::equal(Loaded(stored), values));
  EXPECT_EQ(SizesOf(stored), (std::vector<int64_t>{3}));
}

}  // namespace
}  // namespace pipewright
