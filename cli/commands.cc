#include "cli/commands.h"

namespace pipewright {

const std::vector<Command>& Commands() {
  static const char kCompiler[] = "pipewright", kRunner[] = "pipewright-run";
  static const std::vector<Command> commands = {
      {kCompiler, "codegen", "write a partitioned graph as Python, a module a stage"},
      {kCompiler, "compile", "cut an exported model into a package of modules"},
      {kCompiler, "conf", "group a package's modules for a number of ranks"},
      {kCompiler, "diff", "what differs between two packages, confs, plans, jobs or traces"},
      {kCompiler, "inspect", "what a package consists of: modules, stages, ranks, weights, values"},
      {kCompiler, "partition", "find where to cut a profiled model, with proof"},
      {kCompiler, "plan",
       "order every action of every rank: make a schedule and its plan, or check one"},
      {kCompiler, "place", "which device holds what part of a model, under budgets"},
      {kCompiler, "plot", "pictures as SVG: the cut, a timeline, training curves"},
      {kCompiler, "profile", "measure the modules of a package: time, memory, links"},
      {kCompiler, "simulate", "what a plan would take: time, idle time, memory, by given costs"},
      {kCompiler, "tune", "find the fastest way to run a package and a job on some ranks"},
      {kCompiler, "version", "print the version"},
      {kCompiler, "weights", "list, check, convert, shard and compare checkpoints"},
      {kRunner, "train", "train a package on the data of a job"},
      {kRunner, "bench", "how long steps and actions take, and what they hold in memory"},
      {kRunner, "eval", "the loss of a package on the data of a job, without training"},
      {kRunner, "infer", "a package's outputs for tensors in a file"},
      {kRunner, "generate", "generate text from a prompt, token by token"},
  };
  return commands;
}

}  // namespace pipewright
