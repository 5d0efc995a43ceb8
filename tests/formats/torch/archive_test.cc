// Checks access to the records of PyTorch's archives, on saved models and on zips made here.
#include "formats/torch/archive.h"

#include <gtest/gtest.h>

#include "base/files/read_file.h"
#include "tests/error_text.h"
#include "tests/temp_folder.h"

namespace pipewright {
namespace {

struct Record {
  std::string name, contents;
  bool compressed = false;
};

std::string LittleEndian(uint64_t n, int bytes) {
  std::string text;
  for (int i = 0; i < bytes; ++i) text += static_cast<char>(n >> (8 * i) & 0xff);
  return text;
}

// Returns a zip archive. Compressed records are deflated as one stored block (RFC 1951, 3.2.4).
std::string Zip(const std::vector<Record>& records) {
  std::string file, directory;
  for (const Record& r : records) {
    const uint64_t n = r.contents.size();
    const std::string stored =
        r.compressed ? '\1' + LittleEndian(n, 2) + LittleEndian(~n, 2) + r.contents : r.contents;
    const std::string common = LittleEndian(0, 2) + LittleEndian(r.compressed ? 8 : 0, 2) +
                               LittleEndian(0, 8) + LittleEndian(stored.size(), 4) +
                               LittleEndian(n, 4) + LittleEndian(r.name.size(), 2);
    directory += "PK\1\2" + LittleEndian(0, 4) + common + LittleEndian(0, 12) +
                 LittleEndian(file.size(), 4) + r.name;
    file += "PK\3\4" + LittleEndian(0, 2) + common + LittleEndian(0, 2) + r.name + stored;
  }
  return file + directory + "PK\5\6" + LittleEndian(0, 4) + LittleEndian(records.size(), 2) +
         LittleEndian(records.size(), 2) + LittleEndian(directory.size(), 4) +
         LittleEndian(file.size(), 4) + LittleEndian(0, 2);
}

TEST(Archive, ReadsTheRecordsOfASavedModel) {
  const std::string path = TEST_DIR "/data/import/export.pt2", file = ReadFile(path);
  const Archive archive(path);
  EXPECT_EQ(archive.path(), path);
  EXPECT_TRUE(archive.Has("models/model.json"));
  EXPECT_FALSE(archive.Has("export/models/model.json"));
  EXPECT_FALSE(archive.Has("models"));
  EXPECT_EQ(archive.Read("archive_format"), "pt2");
  EXPECT_EQ(archive.Size("data/weights/weight_0"), 16u);
  EXPECT_EQ(file.substr(archive.Offset("data/weights/weight_0"), 16),
            archive.Read("data/weights/weight_0"));
  EXPECT_TRUE(archive.HasUnder("data/weights/"));
  EXPECT_FALSE(archive.HasUnder("code/"));
  EXPECT_TRUE(Archive(TEST_DIR "/data/import/traced.pt").HasUnder("code/"));
}

TEST(Archive, TheSameFileInMemoryHasTheSameRecords) {
  const std::string path = TEST_DIR "/data/import/traced.pt", file = ReadFile(path);
  const Archive mapped(path), held(file, path);
  EXPECT_EQ(held.Read("data.pkl"), mapped.Read("data.pkl"));
  EXPECT_EQ(held.Offset("data/1"), mapped.Offset("data/1"));
  EXPECT_EQ(held.Version(), mapped.Version());
}

TEST(Archive, CompressedRecordsAreRead) {
  const std::string file = Zip({{"m/code/a.py", "class A", true}, {"m/version", "3\n"}});
  const Archive archive(file, "m.pt");
  EXPECT_EQ(archive.Read("code/a.py"), "class A");
  EXPECT_EQ(archive.Size("code/a.py"), 7u);
  EXPECT_EQ(ErrorOf([&] { archive.Offset("code/a.py"); }),
            "m.pt: code/a.py: is compressed\n  store weights without compression");
  const std::string path = TempPath("compressed.pt");
  WriteFile(path, file);
  EXPECT_EQ(Archive(path).Read("code/a.py"), "class A");
  std::string damaged = file;
  damaged[file.find("class A") - 5] = '\7';  // the kind of its only block
  WriteFile(path, damaged);
  EXPECT_EQ(ErrorOf([&] { Archive(path).Read("code/a.py"); }),
            path +
                ": m/code/a.py: compressed data is damaged: invalid block type\n  copy or save the "
                "file again");
}

TEST(Archive, TheVersionIsInEitherPlace) {
  EXPECT_EQ(Archive(Zip({{"m/version", "3\n"}}), "m.pt").Version(), 3u);
  EXPECT_EQ(Archive(Zip({{"m/version", "3"}, {"m/.data/version", "10"}}), "m.pt").Version(), 10u);
  EXPECT_EQ(ErrorOf([] { Archive(Zip({{"m/version", "three"}}), "m.pt").Version(); }),
            "m.pt: version: is not a number\n  the file is damaged: copy or export it again");
}

TEST(Archive, RecordsOutsideTheFolderDoNotCount) {
  const std::string file = Zip({{"m/version", "3"}, {"m/a", "1"}, {"n/b", "2"}, {"m2/c", "3"}});
  const Archive archive(file, "m.pt");
  EXPECT_TRUE(archive.Has("a"));
  EXPECT_FALSE(archive.Has("b"));
  EXPECT_FALSE(archive.Has("c"));
  EXPECT_FALSE(archive.HasUnder("c"));
}

TEST(Archive, WhatIsNoArchiveIsRefused) {
  const std::string cure =
      "\n  pass a file written by torch.export.save(torch.export.export(model, inputs), "
      "\"model.pt2\"), or by torch.jit.save";
  const std::string file = ReadFile(TEST_DIR "/data/import/traced.pt");
  EXPECT_EQ(ErrorOf([] { Archive("", "m.pt"); }),
            "m.pt: is not an exported model: it does not start like a zip archive" + cure);
  EXPECT_EQ(ErrorOf([&] { Archive(file.substr(0, file.size() / 2), "m.pt"); }),
            "m.pt: is cut off: the directory at the end of the zip archive is missing\n  copy or "
            "export the file again");
  EXPECT_EQ(ErrorOf([] { Archive(Zip({{"data.pkl", "1"}}), "m.pt"); }),
            "m.pt: is not an archive of PyTorch: its records are not in a folder" + cure);
  EXPECT_EQ(ErrorOf([] { Archive(Zip({{"m/data.pkl", "1"}, {"n/version", "3"}}), "m.pt"); }),
            "m.pt: is not an archive of PyTorch: it has no record \"version\"" + cure);
  EXPECT_EQ(
      ErrorOf([] { Archive(Zip({{"m/version", "3"}}), "m.pt").Read("data.pkl"); }),
      "m.pt: data.pkl: is not in the archive\n  the file is damaged: copy or export it again");
  EXPECT_EQ(ErrorOf([] { Archive(TEST_DIR "/data"); }),
            TEST_DIR "/data: is a folder, where a model (a file) is expected");
  EXPECT_EQ(ErrorOf([] { Archive("/no/such/file.pt"); }),
            "/no/such/file.pt: cannot be read: No such file or directory\n  there is no /no");
}

}  // namespace
}  // namespace pipewright
