// `--on-request` of `pipewright-run bench` and `infer`: measurements that alternate with those of
// other programs.
#pragma once
#include "runtime/session.h"

namespace pipewright {

// For each line on the standard input of rank 0, all ranks measure and rank 0 prints one line of
// JSON; returns at the end of the input. Between requests no rank computes or polls often. Times
// are in microseconds, `begin` and `ends` on the steady clock.
//   "steps N"      {"ranks": [{"begin", "ends": [of each step], "measured": of the actions}],
//                  "losses": of the last step's microbatches}: N steps in a row
//   "steps N each" adds for each rank "actions": [of each step [["0F0", time], ...]]
//   "stages S"     {"stages": [{"F", "B" or "I" and "W", "step": [of each microbatch or step]}]}:
//                  the stages of every rank by themselves, in the order of the plan, on all ranks
//                  at once for S seconds, without messages. Weights are restored afterwards; the
//                  optimizer's state is not
//   "halves S"     {"stages": [{"F", "B", "I", "W"}], "link": of ranks 0 and 1}: the same, with
//                  each microbatch's backward right after its forward, whole and split in turn
// A forward-only session accepts only "steps", each of which is a sweep. Returns the number of
// steps run.
// Collective. Throws Error only on the rank at fault: the others must be aborted.
int64_t AnswerRequests(Session& session, Microbatches& source);

}  // namespace pipewright
