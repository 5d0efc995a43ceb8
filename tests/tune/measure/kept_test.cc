// Measurements are used again on the same machine, for the same code only.
#include "tune/measure/kept.h"

#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>

#include "base/process/host_resources.h"
#include "base/text.h"
#include "tests/temp_folder.h"

namespace pipewright {
namespace {

TEST(TuneKept, OnlyForTheSameMachineAndCode) {
  KeptMeasurements kept = {{TempPath("kept")}, "a machine", "a hash"};
  EXPECT_EQ(ReadKept(kept, "one", 1), std::nullopt);
  ASSERT_TRUE(WriteKept(kept, "one", 5, {{"F", 1.5}}));
  EXPECT_EQ(ReadKept(kept, "one", 5), Json({{"F", 1.5}}));
  EXPECT_EQ(ReadKept(kept, "two", 5), std::nullopt);
  EXPECT_EQ(ReadKept(kept, "one", 6), std::nullopt) << "fewer repetitions than asked";
  KeptMeasurements other = kept;
  other.machine = "another";
  EXPECT_EQ(ReadKept(other, "one", 1), std::nullopt);
  ASSERT_TRUE(WriteKept(other, "one", 5, {{"F", 2.5}}));
  EXPECT_EQ(ReadKept(kept, "one", 5), Json({{"F", 1.5}})) << "each machine has its own";
  other = kept;
  other.code = "another";
  EXPECT_EQ(ReadKept(other, "one", 1), std::nullopt);
  for (const auto& file : std::filesystem::directory_iterator(TempPath("kept")))
    std::ofstream(file.path()) << "damaged";
  EXPECT_EQ(ReadKept(kept, "one", 1), std::nullopt);
}

TEST(TuneKept, OnlyForTheSameOperators) {
  std::filesystem::create_directories(TempPath("ops.pkg"));
  std::ofstream(TempPath("ops.pkg/manifest.json")) << "{}";
  std::ofstream(TempPath("ops.so")) << "one";
  TuneRequest request;
  request.package = TempPath("ops.pkg"), request.output = TempPath("ops");
  Manifest manifest;
  manifest.op_libraries = {TempPath("ops.so")};
  const std::string before = KeptFor(request, manifest).code;
  EXPECT_EQ(KeptFor(request, manifest).code, before);
  std::ofstream(TempPath("ops.so")) << "another";
  EXPECT_NE(KeptFor(request, manifest).code, before);
}

TEST(TuneKept, OnlyForTheSameHosts) {
  std::filesystem::create_directories(TempPath("hosts.pkg"));
  std::ofstream(TempPath("hosts.pkg/manifest.json")) << "{}";
  TuneRequest here;
  here.package = TempPath("hosts.pkg"), here.output = TempPath("hosts");
  ASSERT_TRUE(WriteKept(KeptFor(here, {}), "one", 1, 7));
  TuneRequest there = here, elsewhere = here;
  there.start.hosts = "a:1,b:1", elsewhere.start.mpirun = "mpirun --hostfile h";
  for (const TuneRequest& request : {there, elsewhere})
    EXPECT_EQ(ReadKept(KeptFor(request, {}), "one", 1), std::nullopt);
  ASSERT_TRUE(WriteKept(KeptFor(there, {}), "one", 1, 8));
  EXPECT_EQ(ReadKept(KeptFor(there, {}), "one", 1), Json(8));
  EXPECT_EQ(ReadKept(KeptFor(here, {}), "one", 1), Json(7));
}

// A package that is compiled for one tune is gone afterwards; one in the output folder is not.
TEST(TuneKept, StaysInThePackageUnlessThatIsTemporary) {
  std::filesystem::create_directories(TempPath("out/m.pkg"));
  std::ofstream(TempPath("out/m.pkg/manifest.json")) << "{}";
  TuneRequest request;
  request.package = TempPath("out/m.pkg"), request.output = TempPath("out");
  EXPECT_EQ(KeptFor(request, {}).folders[0], request.package + "/tuned/measured");
  request.model = "m.pt2";
  EXPECT_EQ(KeptFor(request, {}).folders, std::vector<std::string>{TempPath("out") + "/measured"});
}

// A file stands where the first folder would be.
TEST(TuneKept, UsesTheFolderThatCanBeWritten) {
  std::ofstream(TempPath("file")) << "";
  const KeptMeasurements kept = {{TempPath("file/a"), TempPath("kept2")}, "m", "h"};
  EXPECT_TRUE(WriteKept(kept, "one", 1, 7));
  EXPECT_FALSE(std::filesystem::is_empty(TempPath("kept2")));
  EXPECT_EQ(ReadKept(kept, "one", 1), Json(7));
  EXPECT_EQ(kept.ToDelete(), TempPath("kept2"));
  EXPECT_FALSE(WriteKept({{TempPath("file/a")}, "m", "h"}, "one", 1, 7));
}

TEST(TuneKept, KnowsTheMachine) {
  EXPECT_NE(MachineName().find(Counted(CoresHere(), "core")), std::string::npos) << MachineName();
}

}  // namespace
}  // namespace pipewright
