// `pipewright`: models in, packages, plans and partitions out.
#include <iterator>

#include "compiler/commands.h"

namespace pipewright {

void AddPlanCommand(CLI::App& app);
void AddSimulateCommand(CLI::App& app);
void AddVersionCommand(CLI::App& app);
void AddWeightsCommand(CLI::App& app);

static const Command kCommands[] = {
    {"plan", "order every action of every rank: make a schedule and its plan, or check one",
     AddPlanCommand},
    {"simulate", "what a plan would take: time, idle time, memory, by given costs",
     AddSimulateCommand},
    {"version", "print the version", AddVersionCommand},
    {"weights", "list, check, convert, shard and compare checkpoints", AddWeightsCommand},
};

}  // namespace pipewright

int main(int argc, char** argv) {
  return pipewright::RunProgram(
      "pipewright", "Cuts models into pipeline stages that mpirun can train and serve.",
      pipewright::kCommands, std::size(pipewright::kCommands), argc, argv);
}
