#include "formats/weights/safetensors.h"

#include <gtest/gtest.h>

#include <fstream>

#include "base/dtype.h"
#include "base/error.h"
#include "base/files/read_file.h"
#include "base/json.h"
#include "base/text.h"
#include "tests/temp_folder.h"

namespace pipewright {

static std::string File(const std::string& header, const std::string& payload = "") {
  std::string file(8, '\0');
  for (int i = 0; i < 8; ++i) file[i] = static_cast<char>(header.size() >> 8 * i);
  return file + header + payload;
}

// Returns "OK [...]" as in cases.tsv, or the text of the error.
static std::string Verdict(const std::string& file) {
  try {
    std::string text;
    for (const TensorInfo& t : ParseSafetensorsHeader(file, "f").tensors)
      text += (text.empty() ? "" : ", ") + std::string("\"") +
              Json(t.name + ":" + t.dtype + ShapeText(t.shape)).dump().substr(1);
    return "OK [" + text + "]";
  } catch (const Error& e) {
    return e.what();
  }
}

// Every case of the reference parser, with its reason for refusals.
TEST(Safetensors, AgreesWithTheReferenceParser) {
  std::ifstream in(TEST_DIR "/data/safetensors/cases.tsv");
  std::string line;
  int cases = 0;
  while (std::getline(in, line)) {
    if (line.empty() || line[0] == '#') continue;
    std::vector<std::string> cells = Split(line, '\t');
    ASSERT_EQ(cells.size(), 3u);
    std::string file;
    for (size_t i = 0; i < cells[2].size(); i += 2)
      file += static_cast<char>(std::stoi(cells[2].substr(i, 2), nullptr, 16));
    std::string verdict = Verdict(file);
    ++cases;
    if (cells[0].substr(0, 7) == "dup_key") {  // refused before its offsets are read
      EXPECT_EQ(verdict, "f: the name \"a\" appears twice (InvalidHeaderDeserialization)");
    } else if (cells[1].substr(0, 3) == "ERR") {
      std::string kind = " (" + cells[1].substr(4) + ")";
      EXPECT_NE(verdict.find(kind), std::string::npos) << cells[0] << ": " << verdict;
      EXPECT_EQ(verdict.find('\n'), std::string::npos) << cells[0];
    } else {
      EXPECT_EQ(verdict.substr(0, 4), "OK [") << cells[0] << ": " << verdict;
      // Each tensor of the expected list, without ":bytes", is in ours.
      Json expected =
          cells[0] == "name_escape" ? Json::array() : ParseJson(cells[1].substr(3), cells[0]);
      for (const Json& item : expected) {
        std::string text = item.get<std::string>();
        EXPECT_NE(verdict.find(text.substr(0, text.rfind(':'))), std::string::npos) << verdict;
      }
    }
  }
  EXPECT_EQ(cases, 47);
}

// Agrees with safetensors 0.8.0 for Python on quirks of its JSON reader, except duplicates.
TEST(Safetensors, AgreesOnQuirks) {
  const std::string entry = R"("dtype":"I32","shape":[2],"data_offsets":[0,8])";
  auto extra = [&](const std::string& value) {
    return "{\"a\":{" + entry + ",\"x\":" + value + "}}";
  };
  auto nested = [&](int n) { return extra(std::string(n, '[') + std::string(n, ']')); };
  const std::vector<std::string> accepted = {
      R"({"a":{"dtype":{"I32":null},"shape":[2],"data_offsets":[0,8]}})",
      R"({"a":["I32",[2],[0,8]]})",
      extra("1"),
      extra("-1.5e3"),
      extra("null"),
      extra("\"t\""),
      extra("{\"y\":[{}]}"),
      extra("1,\"x\":[]"),
      extra("123456789012345678901234567890"),
      nested(125),
      "{\"__metadata__\":null,\"a\":{" + entry + "}}",
      " { \"a\" :\t{" + entry + "}\r\n}  ",
      "{\"\":{" + entry + "}}",
      "{\"\\ud83d\\ude00\":{" + entry + "}}",
  };
  for (const std::string& header : accepted)
    EXPECT_EQ(Verdict(File(header, std::string(8, '\0'))).substr(0, 4), "OK [")
        << header << " " << Verdict(File(header, std::string(8, '\0')));
  const std::vector<std::string> refused = {
      R"({"a":{"dtype":{"I32":{}},"shape":[2],"data_offsets":[0,8]}})",
      R"({"a":{"dtype":{},"shape":[2],"data_offsets":[0,8]}})",
      R"({"a":["I32",[2],[0,8],1]})",
      R"({"a":["I32",[2]]})",
      R"({"a":{"dtype":"I32","shape":[2],"data_offsets":[-0,8]}})",
      R"({"a":{"dtype":"I32","shape":null,"data_offsets":[0,8]}})",
      R"({"a":{"dtype":"I32","shape":{},"data_offsets":[0,8]}})",
      R"({"a":{"dtype":"I32","shape":[[2]],"data_offsets":[0,8]}})",
      R"({"a":{"dtype":"I32","shape":[2],"data_offsets":[0,8,8]}})",
      extra("1e400"),
      nested(126),
      nested(100000),
      extra("\"\\ud83d\""),
      extra("1."),
      extra("01"),
      "{\"__metadata__\":[],\"a\":{" + entry + "}}",
      "{\"__metadata__\":null,\"__metadata__\":null,\"a\":{" + entry + "}}",
      "{\"a\":{" + entry + "},\"b\":1}",
      "{\"a\":{" + entry + "}}\f",
      "{\"a\":{" + entry + "},}",
      "// c\n{\"a\":{" + entry + "}}",
      // Only refused here: the same key twice.
      "{\"__metadata__\":{\"x\":\"1\",\"x\":\"2\"},\"a\":{" + entry + "}}",
      "{\"a\":{" + entry + "},\"a\":{" + entry + "}}",
  };
  for (const std::string& header : refused)
    EXPECT_NE(Verdict(File(header, std::string(8, '\0'))).find("(InvalidHeaderDeserialization)"),
              std::string::npos)
        << header << " " << Verdict(File(header, std::string(8, '\0')));
  EXPECT_NE(Verdict(File("{\"a\xff\":1}")).find("(InvalidHeader)"), std::string::npos);
  EXPECT_NE(Verdict(std::string("\xff\xff\xff\xff\xff\xff\xff\xff", 8)).find("(HeaderTooLarge)"),
            std::string::npos);
  EXPECT_NE(Verdict("1234567").find("(HeaderTooSmall)"), std::string::npos);
}

TEST(Safetensors, ADimensionBeyond63BitsSurvivesBesideAZero) {
  std::string header =
      R"({"a":{"dtype":"I32","shape":[0,18446744073709551615],"data_offsets":[0,0]}})";
  EXPECT_EQ(Verdict(File(header)), "OK [\"a:I32[0, 18446744073709551615]\"]");
}

// Overwrites every byte of a valid header, and cuts it at every length: refused or accepted, but
// never a crash.
TEST(Safetensors, SurvivesDamage) {
  std::string file =
      File(R"({"__metadata__":{"k":"v"},"a":{"dtype":"F16","shape":[2,2],"data_offsets":[0,8]},)"
           R"("b":{"dtype":"U8","shape":[],"data_offsets":[8,9]}})",
           "123456789");
  ASSERT_EQ(Verdict(file).substr(0, 2), "OK");
  for (size_t i = 0; i < file.size(); ++i) {
    EXPECT_NE(Verdict(file.substr(0, i)).substr(0, 2), "OK");
    for (unsigned char c : {0x00, 0x01, 0x20, 0x22, 0x2c, 0x39, 0x5b, 0x7b, 0x7d, 0x80, 0xff}) {
      std::string damaged = file;
      damaged[i] = static_cast<char>(c);
      EXPECT_FALSE(Verdict(damaged).empty());
    }
  }
}

static std::vector<TensorToWrite> Sample() {
  static const std::string kBytes = "0123456789abcdefghijklmnopqrstuv";
  auto bytes = [](size_t n) { return std::string_view(kBytes).substr(0, n); };
  return {{"b", "F32", {2, 2}, bytes(16)},  {"a", "F32", {1}, bytes(4)},
          {"m", "BOOL", {3}, bytes(3)},     {"h", "BF16", {2}, bytes(4)},
          {"l", "I64", {}, bytes(8)},       {"z", "F64", {0, 5}, {}},
          {"four", "F4", {2, 2}, bytes(2)}, {std::string("q\n\0x", 4), "F16", {1}, bytes(2)}};
}

TEST(SafetensorsWrite, SortsAlignsAndIsDeterministic) {
  std::string path = TempPath("w.safetensors"), again = path + "2";
  std::vector<TensorToWrite> tensors = Sample();
  WriteSafetensors(path, tensors, {{"format", "pt"}, {"a", "b"}});
  std::reverse(tensors.begin(), tensors.end());
  tensors[0].produce = [bytes = tensors[0].bytes](const ByteSink& sink) {
    for (char c : bytes) sink({&c, 1});
  };
  WriteSafetensors(again, tensors, {{"a", "b"}, {"format", "pt"}});
  std::string file = ReadFile(path);
  EXPECT_EQ(file, ReadFile(again));

  SafetensorsFile read(path);
  EXPECT_EQ(read.header().data_begin % 64, 0u);
  EXPECT_EQ(read.header().metadata.at("format"), "pt");
  EXPECT_EQ(read.header().tensors.size(), 8u);
  for (const TensorToWrite& tensor : Sample()) {
    const TensorInfo& info = read.At(tensor.name);
    EXPECT_EQ(info.dtype, tensor.dtype);
    EXPECT_EQ(info.shape, tensor.shape);
    EXPECT_EQ(read.Bytes(info), tensor.bytes);
    EXPECT_EQ(info.begin % static_cast<uint64_t>(std::max(FindDtype(info.dtype)->bits / 8, 1)), 0u);
  }
  // Widest first, then by name: the order in the text of the header.
  size_t at = 0;
  for (const char* name :
       {"\"l\"", "\"z\"", "\"a\"", "\"b\"", "\"h\"", "\"q", "\"four\"", "\"m\""}) {
    size_t found = file.find(name, file.find("pt\"}"));
    EXPECT_GT(found, at) << name;
    at = found;
  }
}

// The header text of the reference writer for the same tensors, padded here to 64 bytes.
TEST(SafetensorsWrite, HeaderTextIsTheReferences) {
  std::string path = TempPath("golden.safetensors");
  std::string zeros(16, '\0');
  WriteSafetensors(path, {{"test2", "F16", {2, 2}, std::string_view(zeros).substr(8)},
                          {"test1", "I32", {2, 2}, zeros}});
  std::string header = R"({"test1":{"dtype":"I32","shape":[2,2],"data_offsets":[0,16]},)"
                       R"("test2":{"dtype":"F16","shape":[2,2],"data_offsets":[16,24]}})";
  header.resize(184, ' ');
  EXPECT_EQ(ReadFile(path), File(header, std::string(24, '\0')));
  WriteSafetensors(path, {});
  EXPECT_EQ(ReadFile(path), File("{}" + std::string(54, ' ')));
}

TEST(SafetensorsWrite, RefusesAndLeavesTheOldFile) {
  std::string path = TempPath("refused.safetensors");
  WriteFile(path, "old");
  auto refused = [&](std::vector<TensorToWrite> tensors, const std::string& reason) {
    try {
      WriteSafetensors(path, tensors);
      ADD_FAILURE() << reason;
    } catch (const Error& e) {
      EXPECT_NE(std::string(e.what()).find(reason), std::string::npos) << e.what();
    }
    EXPECT_EQ(ReadFile(path), "old");
  };
  refused({{"a", "F32", {1}, "1234"}, {"a", "F16", {1}, "12"}}, "two tensors are named \"a\"");
  refused({{"a", "C128", {1}, ""}}, "\"C128\" has no place");
  refused({{"a", "F32", {2}, "1234"}}, "4 bytes were given, its shape takes 8");
  refused({{"a", "F32", {0}, "1234"}}, "4 bytes were given, its shape takes 0");
  refused({{"__metadata__", "U8", {0}, ""}}, "__metadata__");
  refused({{"a", "F6_E2M3", {3}, "123"}}, "MisalignedSlice");
}

TEST(SafetensorsFile, CopiesFromFileToFileAndOutlivesAReplacement) {
  std::string path = TempPath("copy.safetensors");
  std::string bytes(3 << 20, 'x');
  bytes[(1 << 20) + 5] = 'y';
  WriteSafetensors(path, {{"big", "U8", {3 << 20}, bytes}});
  SafetensorsFile from(path);
  WriteSafetensors(path, {CopyOf(from, from.At("big"))}, {{"k", "v"}});  // onto itself
  EXPECT_EQ(from.Bytes(from.At("big")), bytes);
  SafetensorsFile copy(path);
  EXPECT_EQ(copy.Bytes(copy.At("big")), bytes);
  // Written pages stay private.
  *copy.MutableBytes(copy.At("big")) = 'w';
  EXPECT_EQ(SafetensorsFile(path).Bytes(copy.At("big"))[0], 'x');
  char part[3];
  copy.Read(copy.At("big"), (1 << 20) + 4, part, 3);
  EXPECT_EQ(std::string(part, 3), "xyx");
  EXPECT_THROW(copy.Read(copy.At("big"), (3 << 20) - 2, part, 3), Error);
  EXPECT_THROW(copy.At("bog"), Error);
  EXPECT_THROW(SafetensorsFile(TempPath("")), Error);
  try {
    SafetensorsFile absent(path + ".absent");
    FAIL();
  } catch (const Error& e) {
    EXPECT_NE(std::string(e.what()).find(": cannot be read: No such file or directory"),
              std::string::npos)
        << e.what();
  }
}

}  // namespace pipewright
