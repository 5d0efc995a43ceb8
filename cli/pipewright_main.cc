// `pipewright`: compiles models to packages, makes plans and partitions.
#include <iterator>

#include "cli/commands.h"

namespace pipewright {

void AddCodegenCommand(CLI::App& app);
void AddCompileCommand(CLI::App& app);
void AddConfCommand(CLI::App& app);
void AddPartitionCommand(CLI::App& app);
void AddPlanCommand(CLI::App& app);
void AddPlaceCommand(CLI::App& app);
void AddProfileCommand(CLI::App& app);
void AddSimulateCommand(CLI::App& app);
void AddVersionCommand(CLI::App& app);
void AddWeightsCommand(CLI::App& app);

static const Command kCommands[] = {
    {"codegen", "write a partitioned graph as Python, a module a stage", AddCodegenCommand},
#ifdef PIPEWRIGHT_TORCH
    {"compile", "cut an exported model into a package of modules", AddCompileCommand},
#endif
    {"conf", "group a package's modules for a number of ranks", AddConfCommand},
    {"partition", "find where to cut a profiled model, with proof", AddPartitionCommand},
    {"plan", "order every action of every rank: make a schedule and its plan, or check one",
     AddPlanCommand},
    {"place", "which device holds what part of a model, under budgets", AddPlaceCommand},
#ifdef PIPEWRIGHT_TORCH
    {"profile", "measure the modules of a package: time, memory, links", AddProfileCommand},
#endif
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
