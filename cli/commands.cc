#include "cli/commands.h"

namespace pipewright {

const std::vector<Command>& Commands() {
  static const char kCompiler[] = "pipewright", kRunner[] = "pipewright-run";
  static const std::vector<Command> commands = {
      {kCompiler, "check", "find mistakes in a run before starting it",
       "pipewright check model.pkg job.json --ranks 2"},
      {kCompiler, "codegen", "write a partitioned graph as Python, one module per stage",
       "pipewright codegen graph.txt -n Vgg16 -a vgg16 -o code"},
      {kCompiler, "compile", "cut an exported model into a package of modules",
       "pipewright compile model.pt2 -o model.pkg --split equal:4 --ranks 2"},
      {kCompiler, "completion", "print a shell completion script",
       "pipewright completion bash > ~/.local/share/bash-completion/completions/pipewright"},
      {kCompiler, "conf", "group the modules of a package into stages for a number of ranks",
       "pipewright conf model.pkg --ranks 2 -o conf.json"},
      {kCompiler, "diff", "compare two packages, confs, plans, jobs or traces",
       "pipewright diff model.pkg edited.pkg"},
      {kCompiler, "help", "show help for a command", "pipewright help compile"},
      {kCompiler, "inspect", "show the modules, stages, ranks, weights and values of a package",
       "pipewright inspect model.pkg --module 1"},
      {kCompiler, "partition", "find the best cut of a profiled model, and prove how good it is",
       "pipewright partition model.pkg --stages 2 -o cut"},
      {kCompiler, "plan",
       "make or check a schedule or plan, which orders the actions of every rank",
       "pipewright plan --schedule zb-h1 --ranks 4 --microbatches 8"},
      {kCompiler, "place", "assign the parts of a model to devices, within memory budgets",
       "pipewright place model.pkg --max-memory 0=1GiB,cpu=8GiB -o map.json"},
      {kCompiler, "plot", "draw a cut, a timeline, memory or training curves as SVG",
       "pipewright plot cut model.pkg -o cut.svg"},
      {kCompiler, "profile", "measure the time and memory of each module, and the speed of links",
       "mpirun -n 2 pipewright profile model.pkg"},
      {kCompiler, "report", "write an HTML page about a package and its runs",
       "pipewright report model.pkg --job job.json --metrics metrics.jsonl -o report.html"},
      {kCompiler, "simulate", "predict the time, idle time and memory of a plan from its costs",
       "pipewright simulate plan.csv --costs costs.json --text"},
      {kCompiler, "tune", "find the fastest way to run a package and a job on up to N ranks",
       "pipewright tune model.pkg job.json --ranks 4 -o tuned"},
      {kCompiler, "version", "print the version", "pipewright version"},
      {kCompiler, "weights", "list, check, convert, shard and compare checkpoints",
       "pipewright weights list model.safetensors"},
      {kRunner, "train", "train a package on the data of a job",
       "pipewright-run -n 2 train model.pkg job.json --set optimizer.lr=0.01"},
      {kRunner, "bench", "measure the time and memory of steps and actions",
       "pipewright-run -n 2 bench model.pkg job.json --trace trace.json"},
      {kRunner, "eval", "compute the loss of a package on the data of a job, without training",
       "pipewright-run -n 2 eval model.pkg job.json --weights trained.safetensors"},
      {kRunner, "infer", "compute a package's outputs for the tensors in a file",
       "pipewright-run -n 2 infer model.pkg --input rows.safetensors -o out.safetensors"},
      {kRunner, "generate", "generate text from a prompt, token by token",
       "pipewright-run -n 2 generate model.pkg --prompt \"Once upon\" --max-new-tokens 50"},
      {kRunner, "completion", "print a shell completion script",
       "pipewright-run completion fish > ~/.config/fish/completions/pipewright-run.fish"},
      {kRunner, "help", "show help for a command", "pipewright-run help train"},
  };
  return commands;
}

std::string ExampleText(const std::string& command_line) { return "Example:\n  " + command_line; }

}  // namespace pipewright
