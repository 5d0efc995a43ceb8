// Defines a plan: the actions of every rank, in order. plan/plan_text.h defines its
// text form.
#pragma once
#include <cstdint>
#include <string>
#include <vector>

namespace pipewright {

enum class ActionKind : uint8_t {
  kForward,       // 2F5   forward of stage 2 on microbatch 5
  kBackward,      // 2B5   full backward: input and weight gradients
  kInputGrad,     // 2I5   input gradients only
  kWeightGrad,    // 2W5   weight gradients only
  kOverlap,       // (2F5;1B3)OVERLAP_F_B: a forward and a backward run as one
  kSendForward,   // 2SEND_F5>4   sends values of stage 2 to stage 4
  kRecvForward,   // 4RECV_F5<2   posts the receive; the compute that needs it waits
  kSendBackward,  // 4SEND_B5>2   gradients of stage 4's inputs to their producer, stage 2
  kRecvBackward,  // 2RECV_B5<4
  kReduceGrad,    // 2REDUCE_GRAD gradients of stage 2's shared weights, and of its replicas, summed
  kStep,          // 2STEP        optimizer step of stage 2
  kLoad,          // 2LOAD        reads the weights of an offloaded stage
  kEvict,         // 2EVICT
  kUnshard,       // accepted in PyTorch's text; has no effect here
  kReshard,
};

// One entry of a rank's list.
struct Action {
  ActionKind kind = ActionKind::kForward;
  int stage = -1;       // the stage that computes, sends or receives
  int microbatch = -1;  // -1 if the kind has none (REDUCE_GRAD, STEP, LOAD, EVICT)
  int peer = -1;        // stage at the other end of a transfer; -1: the neighbor, not written
  int slot = -1;        // receive buffer of the edge (`#1`); -1: not assigned
  int version = -1;     // weight version (`@3`); -1: the current one
  int overlap_stage = -1, overlap_microbatch = -1;  // kOverlap: the backward half; else -1

  bool operator==(const Action&) const = default;
};

// A transfer between two stages: every value that `from` produces and `to` uses, as one message.
// Edges may skip stages; from < to in a graph numbered in topological order.
struct StageEdge {
  int from = -1, to = -1;
  bool gradient = true;       // some of its values have a gradient
  int64_t forward_bytes = 0;  // per microbatch; 0: unknown
  int64_t backward_bytes = 0;

  bool operator==(const StageEdge&) const = default;
};

// The input of lowering, from a package and a conf.
struct StageGraph {
  int stages = 0;
  int ranks = 0;
  std::vector<StageEdge> edges;            // sorted by (from, to), no duplicates
  std::vector<std::vector<int>> ranks_of;  // stage -> its replicas; microbatch i runs on i mod r
  std::vector<std::vector<int>> shared;    // groups of stages that hold one weight, ascending
  // Microbatches per step in a plan of several steps; in each step the first replica begins again.
  // 0: one step.
  int microbatches = 0;
};

// The layout of a plan in its file, as far as the actions do not determine it, so that reading and
// writing keep every byte. May be outdated after actions change: parts that no longer fit are
// written in the default form.
struct PlanLayout {
  // `count` empty cells come before the action at `position` of `rank`; sorted.
  struct Idle {
    int rank = 0, position = 0, count = 0;
    bool operator==(const Idle&) const = default;
  };
  // The action at `position` of `rank` was written as `text`; sorted.
  struct Spelling {
    int rank = 0, position = 0;
    std::string text;
    bool operator==(const Spelling&) const = default;
  };
  std::vector<Idle> idle;
  std::vector<Spelling> spellings;
  std::string header;            // the lines before the first rank's, as they were written
  bool input_grad_as_b = false;  // PyTorch's older zb1p files spell I as B
  bool crlf = false;             // lines end with \r\n
  bool final_newline = true;
};

// Every action of every rank, ready to run.
struct Plan {
  int stages = 0;
  int microbatches = 0;  // per step; step k has the indices k * microbatches and up
  int steps = 1;         // optimizer steps in a row
  bool forward_only = false;
  std::vector<std::vector<int>> shared;    // as StageGraph::shared
  std::vector<int> recompute;              // stages that recompute their forward before B or I
  std::vector<std::vector<Action>> ranks;  // [rank][position]
  PlanLayout layout;
  std::vector<std::string> notes;  // notes of the reader for the user
};

}  // namespace pipewright
