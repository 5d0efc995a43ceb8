// Tests which parts of mpirun's stderr are shown.
#include "runtime/watch/banners.h"

#include <gtest/gtest.h>

#include <string>

namespace pipewright {
namespace {

const std::string kRule = std::string(74, '-') + "\n";
const std::string kAbort =
    kRule + "MPI_ABORT was invoked on rank 1 in communicator MPI COMMUNICATOR 3 DUP FROM 0\n" +
    "with errorcode 1.\n\nNOTE: invoking MPI_ABORT causes Open MPI to kill all MPI processes.\n" +
    kRule;
const std::string kSlots =
    kRule + "There are not enough slots available in the system to satisfy the 3\nslots\n" + kRule;
const std::string kCounts =
    "[host:12] 1 more process has sent help message help-mpi-api.txt / mpi-abort\n"
    "[host:12] Set MCA parameter \"orte_base_help_aggregate\" to 0 to see all help / error messages\n";

// Returns what is shown if the bytes arrive in pieces of this size.
std::string Shown(const std::string& all, size_t piece) {
  std::string text, shown;
  for (size_t at = 0; at < all.size(); at += piece) {
    text += all.substr(at, piece);
    shown += TakeShown(text, false);
  }
  shown += TakeShown(text, true);
  EXPECT_EQ(text, "");
  return shown;
}

TEST(Banners, RemovesThoseOfEndsAndKeepsTheRest) {
  const std::string before = "pipewright-run: job.json: no\n  a cure\n", after = "- a list\n--\nend";
  for (const size_t piece : {1, 7, 100, 10000}) {
    EXPECT_EQ(Shown(before + kAbort + kSlots + kCounts + after, piece), before + kSlots + after);
    EXPECT_EQ(Shown(kSlots + kAbort, piece), kSlots);
    EXPECT_EQ(Shown(before + kRule + "a line of dashes that nothing closes\n", piece),
              before + kRule + "a line of dashes that nothing closes\n");
  }
}

TEST(Banners, ShowsOtherTextAtOnce) {
  std::string text = "step 1\nhalf a li";
  EXPECT_EQ(TakeShown(text, false), "step 1\nhalf a li");
  text = kRule + "MPI_ABORT was";
  EXPECT_EQ(TakeShown(text, false), "");
}

}  // namespace
}  // namespace pipewright
