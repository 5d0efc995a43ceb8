// `pipewright`: compiles models to packages, makes plans and partitions.
#include <map>
#include <string>

#include "cli/program.h"

namespace pipewright {

void AddCheckCommand(CLI::App& app);
void AddCodegenCommand(CLI::App& app);
void AddCompileCommand(CLI::App& app);
void AddConfCommand(CLI::App& app);
void AddDiffCommand(CLI::App& app);
void AddInspectCommand(CLI::App& app);
void AddPartitionCommand(CLI::App& app);
void AddPlanCommand(CLI::App& app);
void AddPlaceCommand(CLI::App& app);
void AddPlotCommand(CLI::App& app);
void AddProfileCommand(CLI::App& app);
void AddReportCommand(CLI::App& app);
void AddSimulateCommand(CLI::App& app);
void AddTuneCommand(CLI::App& app);
void AddVersionCommand(CLI::App& app);
void AddWeightsCommand(CLI::App& app);

static const std::map<std::string, AddCommand> kAdders = {
#ifdef PIPEWRIGHT_TORCH
    {"check", AddCheckCommand},         {"compile", AddCompileCommand},
    {"profile", AddProfileCommand},     {"tune", AddTuneCommand},
#endif
    {"codegen", AddCodegenCommand},     {"conf", AddConfCommand},
    {"diff", AddDiffCommand},           {"inspect", AddInspectCommand},
    {"partition", AddPartitionCommand}, {"place", AddPlaceCommand},
    {"plan", AddPlanCommand},           {"plot", AddPlotCommand},
    {"report", AddReportCommand},       {"simulate", AddSimulateCommand},
    {"version", AddVersionCommand},     {"weights", AddWeightsCommand},
};

}  // namespace pipewright

int main(int argc, char** argv) {
  return pipewright::RunProgram(
      "pipewright", "Cuts models into pipeline stages, for training and inference under mpirun.",
      pipewright::kAdders, argc, argv);
}
