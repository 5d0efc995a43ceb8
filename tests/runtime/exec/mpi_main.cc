// Runs gtest on every rank of an MPI job: a failed assertion on one rank ends all of them.
#include <gtest/gtest.h>

#include <cstdlib>

#include "tests/runtime/exec/mpi_main.h"

namespace pipewright {

static Transport* world = nullptr;
Transport& World() { return *world; }

namespace {

class AbortOnFailure : public testing::EmptyTestEventListener {
  void OnTestPartResult(const testing::TestPartResult& result) override {
    if (!result.failed()) return;
    world->Abort("rank " + std::to_string(world->rank()) + ": " +
                     (result.file_name() ? result.file_name() : "?") + ":" +
                     std::to_string(result.line_number()) + ": " + result.message(),
                 1);
  }
  // No rank starts the next test before all have ended this one.
  void OnTestEnd(const testing::TestInfo&) override { world->AllGather(""); }
};

}  // namespace
}  // namespace pipewright

int main(int argc, char** argv) {
  return pipewright::RunMpi(&argc, &argv, argv[0], [&](pipewright::Transport& transport) {
    pipewright::world = &transport;
    testing::InitGoogleTest(&argc, argv);
    auto& listeners = testing::UnitTest::GetInstance()->listeners();
    if (transport.rank() > 0) delete listeners.Release(listeners.default_result_printer());
    listeners.Append(new pipewright::AbortOnFailure);
    return RUN_ALL_TESTS();
  });
}
