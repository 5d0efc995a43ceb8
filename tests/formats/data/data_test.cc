// Reads samples of tokens, of arrays and of a source in a library, in the order of epochs.
#include <gtest/gtest.h>

#include "base/files/read_file.h"
#include "formats/data/npy.h"
#include "formats/data/open.h"
#include "formats/weights/safetensors.h"
#include "tests/error_text.h"
#include "tests/temp_folder.h"

namespace pipewright {

using Numbers = std::vector<int64_t>;

template <typename T = int64_t>
static std::vector<T> Sample(const DataSource& source, int column, int64_t sample) {
  const std::vector<DataColumn> columns = source.columns();
  int64_t count = 1;
  for (int64_t size : columns[static_cast<size_t>(column)].shape) count *= size;
  std::vector<T> numbers(static_cast<size_t>(count));
  source.Read(column, sample, reinterpret_cast<char*>(numbers.data()));
  return numbers;
}

// Computed by a Python program from the definition in the header.
TEST(Data, EpochOrderIsThePublishedOne) {
  EXPECT_EQ(EpochOrder(8, 0, 0, true), (Numbers{4, 0, 7, 3, 1, 2, 5, 6}));
  EXPECT_EQ(EpochOrder(8, 0, 1, true), (Numbers{4, 5, 1, 7, 2, 0, 6, 3}));
  EXPECT_EQ(EpochOrder(8, 7, 0, true), (Numbers{7, 2, 4, 5, 0, 6, 1, 3}));
  EXPECT_EQ(EpochOrder(4, 7, 0, false), (Numbers{0, 1, 2, 3}));
}

TEST(Data, TokensAreWindowsAndTheirSuccessorsFileByFile) {
  std::string a = TempPath("a.bin"), empty = TempPath("empty.bin"), b = TempPath("b.bin");
  WriteFile(a, "abcdefghijk");  // windows at 0 and 4; the next would need a token 13
  WriteFile(empty, "xyz");
  WriteFile(b, "01234");
  auto source = OpenTokens({a, empty, b}, 1, 4);
  ASSERT_EQ(source->samples(), 3);
  EXPECT_EQ(source->tokens_per_sample(), 4);
  EXPECT_EQ(Sample(*source, 0, 0), (Numbers{'a', 'b', 'c', 'd'}));
  EXPECT_EQ(Sample(*source, 1, 1), (Numbers{'f', 'g', 'h', 'i'}));
  EXPECT_EQ(Sample(*source, 0, 2), (Numbers{'0', '1', '2', '3'}));
  EXPECT_EQ(Sample(*source, 1, 2), (Numbers{'1', '2', '3', '4'}));
}

TEST(Data, WideTokensAreLittleEndian) {
  std::string path = TempPath("wide.bin");
  WriteFile(path, std::string("\x01\x02\x00\x01\xff\xff\x00\x00\xff\xff\xff\xff", 12));
  EXPECT_EQ(Sample(*OpenTokens({path}, 2, 3), 0, 0), (Numbers{0x201, 0x100, 0xffff}));
  EXPECT_EQ(Sample(*OpenTokens({path}, 4, 2), 1, 0), (Numbers{0xffff, 0xffffffff}));
  EXPECT_NE(ErrorOf([&] { OpenTokens({path}, 8, 2); }).find("not a multiple of 8 bytes"),
            std::string::npos);
}

// Returns what numpy.save writes for numpy.arange(6, dtype="<i4").reshape(3, 2).
static std::string Npy(const std::string& dict, const std::string& data, char version = 1) {
  std::string header = dict, length(version == 1 ? 2 : 4, '\0');
  size_t before = 8 + length.size();
  header.resize((before + dict.size() + 1 + 63) / 64 * 64 - before, ' ');
  header.back() = '\n';
  length[0] = static_cast<char>(header.size() % 256);
  length[1] = static_cast<char>(header.size() / 256);
  return std::string("\x93NUMPY") + version + '\0' + length + header + data;
}
static const std::string kInts("\0\0\0\0\1\0\0\0\2\0\0\0\3\0\0\0\4\0\0\0\5\0\0\0", 24);

TEST(Data, ReadsNpy) {
  for (char version : {1, 2, 3}) {
    std::string file =
        Npy("{'descr': '<i4', 'fortran_order': False, 'shape': (3, 2), }", kInts, version);
    NpyHeader header = ParseNpyHeader(file, "f.npy");
    EXPECT_EQ(header.dtype, "int32");
    EXPECT_EQ(header.shape, (Numbers{3, 2}));
    EXPECT_EQ(file.substr(header.data_begin), kInts);
  }
  EXPECT_EQ(ParseNpyHeader(Npy("{'descr': '|u1', 'fortran_order': False, 'shape': (), }", "x"), "f")
                .shape,
            Numbers{});
  EXPECT_EQ(
      ParseNpyHeader(Npy("{'descr': '<f8', 'fortran_order': False, 'shape': (0,), }", ""), "f")
          .dtype,
      "float64");
}

TEST(Data, RefusesOtherNpy) {
  auto reason = [](const std::string& file) { return ErrorOf([&] { ParseNpyHeader(file, "f"); }); };
  EXPECT_EQ(reason("PK"), "f: is not a .npy file");
  EXPECT_EQ(reason(std::string("\x93NUMPY\1\0\xff\xff{}", 12)), "f: ends within its header");
  EXPECT_NE(reason(Npy("{'descr': '>i4', 'fortran_order': False, 'shape': (3, 2), }", kInts))
                .find("the type '>i4'"),
            std::string::npos);
  EXPECT_NE(reason(Npy("{'descr': '<i4', 'fortran_order': True, 'shape': (3, 2), }", kInts))
                .find("Fortran order"),
            std::string::npos);
  EXPECT_EQ(reason(Npy("{'descr': '<i4', 'fortran_order': False, 'shape': (3, 3), }", kInts)),
            "f: holds 24 bytes of data, its shape takes 36");
  EXPECT_EQ(reason(Npy("{'descr': [('a', '<i4')], 'fortran_order': False}", kInts)),
            "f: its header lacks \"descr\" or \"shape\"");
}

TEST(Data, ColumnsRunOverSeveralFiles) {
  std::string npy = TempPath("x.npy"), one = TempPath("1.safetensors"),
              two = TempPath("2.safetensors");
  WriteFile(npy, Npy("{'descr': '<i4', 'fortran_order': False, 'shape': (3, 2), }", kInts));
  float numbers[6] = {10, 11, 12, 13, 14, 15};
  std::string_view bytes(reinterpret_cast<const char*>(numbers), sizeof numbers);
  WriteSafetensors(one, {{"y", "F32", {2}, bytes.substr(0, 8)}});
  WriteSafetensors(two,
                   {{"y", "F32", {1}, bytes.substr(8, 4)}, {"z", "F32", {4}, bytes.substr(8)}});
  auto source = OpenColumns({{"x", "x", {npy}}, {"y", "y", {one, two}}});
  ASSERT_EQ(source->samples(), 3);
  EXPECT_EQ(Sample<int32_t>(*source, 0, 2), (std::vector<int32_t>{4, 5}));
  EXPECT_EQ(Sample<float>(*source, 1, 1), std::vector<float>{11});
  EXPECT_EQ(Sample<float>(*source, 1, 2), std::vector<float>{12});
  EXPECT_NE(ErrorOf([&] {
              OpenColumns({{"x", "x", {npy}}, {"z", "z", {two}}});
            }).find("\"z\" has 4 samples, \"x\" has 3"),
            std::string::npos);
  EXPECT_NE(ErrorOf([&] {
              OpenColumns({{"a", "yy", {one}}});
            }).find("(did you mean \"y\"?)"),
            std::string::npos);
  EXPECT_NE(ErrorOf([&] {
              OpenColumns({{"a", "y", {one, npy}}});
            }).find("is int32 with rows of [2], in " + one + " float32 with rows of []"),
            std::string::npos);
}

TEST(Data, ReadsAnOwnSourceFromALibrary) {
  const std::string library = EXAMPLE_SOURCE;
  auto source = OpenPlugin(library, R"({"samples": 5, "length": 3})");
  EXPECT_EQ(source->samples(), 5);
  EXPECT_EQ(source->columns()[1].name, "next");
  EXPECT_EQ(Sample(*source, 0, 2), (Numbers{2, 5, 8}));
  EXPECT_EQ(Sample(*source, 1, 2), (Numbers{5, 8, 11}));
  EXPECT_EQ(ErrorOf([&] { OpenPlugin(library, "{}"); }),
            library + ": samples and length are needed");
  EXPECT_NE(ErrorOf([&] { OpenPlugin("absent.so", ""); }).find("cannot be loaded"),
            std::string::npos);
}

}  // namespace pipewright
