// `pipewright`: models in, packages, plans and partitions out.
#include <iterator>

#include "compiler/commands.h"

namespace pipewright {

void AddVersionCommand(CLI::App& app);

static const Command kCommands[] = {
    {"version", "print the version", AddVersionCommand},
};

}  // namespace pipewright

int main(int argc, char** argv) {
  return pipewright::RunProgram(
      "pipewright", "Cuts models into pipeline stages that mpirun can train and serve.",
      pipewright::kCommands, std::size(pipewright::kCommands), argc, argv);
}
