// Tests what loading NCCL says when it cannot. tests/fake_nccl tests it with a library.
#include "runtime/nccl/nccl_library.h"

#include <gtest/gtest.h>

#include <cstdlib>

#include "tests/error_text.h"

namespace pipewright {

TEST(NcclLibrary, AMissingOneIsNamedWithThePlacesSearched) {
  setenv("LD_LIBRARY_PATH", "/no/such/folder", 1);
  EXPECT_EQ(ErrorOf([] { LoadNccl("libnccl-missing.so.2"); }),
            "libnccl-missing.so.2: NCCL cannot be loaded: libnccl-missing.so.2: cannot open shared "
            "object file: No such file or directory. Searched: the libraries of this process, "
            "LD_LIBRARY_PATH (/no/such/folder), and the system's folders\n"
            "  install a PyTorch wheel for CUDA, which comes with the wheel nvidia-nccl, or add "
            "the folder of libnccl.so.2 to LD_LIBRARY_PATH");
  unsetenv("LD_LIBRARY_PATH");
  EXPECT_NE(ErrorOf([] { LoadNccl("libnccl-missing.so.2"); }).find("LD_LIBRARY_PATH (not set)"),
            std::string::npos);
}

TEST(NcclLibrary, AnotherLibraryIsRefused) {
  EXPECT_EQ(ErrorOf([] { LoadNccl("libc.so.6"); }),
            "libc.so.6: this library of NCCL has no function ncclGetVersion\n"
            "  install NCCL 2.18.0 or later");
}

TEST(NcclLibrary, VersionsAreFormatted) {
  EXPECT_EQ(NcclVersionText(22907), "2.29.7");
  EXPECT_EQ(NcclVersionText(21800), "2.18.0");
  EXPECT_EQ(NcclVersionText(2708), "2.7.8");
}

TEST(NcclLibrary, SuccessNeedsNoLibrary) { CheckNccl(kNcclSuccess, "ncclSend", nullptr); }

}  // namespace pipewright
