// `pipewright-run`: the program that mpirun starts, one process per rank.
#include <map>
#include <string>

#include "base/process/messages.h"
#include "cli/program.h"
#include "cli/run/commands.h"
#include "cli/run/launch.h"
#include "runtime/cpu/memory_settings.h"

namespace pipewright {
namespace {

const std::map<std::string, AddCommand> kAdders = {{"train", AddTrain},
                                                   {"bench", AddBench},
                                                   {"eval", AddEval},
                                                   {"infer", AddInfer},
                                                   {"generate", AddGenerate}};

}  // namespace
}  // namespace pipewright

int main(int argc, char** argv) {
  using namespace pipewright;
  KeepFreedMemory();
  DropStartUpCode();
  SetCommandLine(argc, argv);
  SetMessagePrefix("pipewright-run: ");
  return RunProgram("pipewright-run",
                    "Trains and runs packages: mpirun -n N pipewright-run train PACKAGE JOB",
                    kAdders, argc, argv, AddLaunchOptions);
}
