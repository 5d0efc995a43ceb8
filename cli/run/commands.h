// The commands of `pipewright-run`. Each function adds a command's options to `app`, and a callback
// that does the work (AddCommand in cli/program.h).
#pragma once

namespace CLI {
class App;
}

namespace pipewright {

void AddTrain(CLI::App& app);
void AddBench(CLI::App& app);
void AddEval(CLI::App& app);
void AddInfer(CLI::App& app);
void AddGenerate(CLI::App& app);

}  // namespace pipewright
