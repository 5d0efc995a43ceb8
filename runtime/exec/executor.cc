#include "runtime/exec/executor.h"

#include <algorithm>
#include <chrono>
#include <deque>
#include <string>
#include <utility>

#include "base/error.h"
#include "base/process/process_memory.h"
#include "base/text.h"
#include "plan/actions.h"
#include "plan/plan_text.h"
#include "runtime/exec/clock.h"
#include "runtime/exec/message.h"
#include "runtime/exec/message_size.h"
#include "runtime/exec/rank_list.h"
#include "runtime/exec/reduce.h"

namespace pipewright {

namespace {

// One message of an edge on this rank, from its creation (computed here, or its receive posted) to
// its use (by a computation here, or a send).
struct Slot {
  enum { kEmpty, kPosted, kReady } state = kEmpty;
  Bundle bundle;
  Token token;                            // if kPosted
  std::shared_ptr<MessageHeader> header;  // if kPosted and messages are checked
  int source = -1, tag = 0;               // if kPosted: the sending rank
};

struct SentMessage {
  Token token;
  int peer;      // rank
  size_t entry;  // index in the list
  bool counts;   // in State::unreceived
};

}  // namespace

int64_t StageBody::MessageBytes(int, int, bool) { return -1; }
Bundle StageBody::OnHost(Bundle message) { return message; }
void StageBody::UseVersion(int, int) { throw Error("stages keep one version of their weights"); }
void StageBody::Load(int) { throw Error("this stage keeps all its weights: nothing to load"); }
void StageBody::OnReady(std::function<void(int)>) {}
std::shared_ptr<void> StageBody::Exchanging(bool) { return nullptr; }
void StageBody::EndExchanges() {}
void StageBody::Evict(int) { throw Error("this stage keeps all its weights: nothing to evict"); }

struct Executor::State {
  State(const Plan& plan, const StageGraph& graph, const std::vector<SharedGroup>& groups,
        StageBody& body, Transport& transport, const ExecutorOptions& options)
      : graph(graph),
        body(body),
        transport(transport),
        options(options),
        rank(transport.rank()),
        list(MakeRankList(plan, graph, groups, rank, transport.max_tag() - kReservedTags)),
        reducer(groups, body, transport, list.first_group_tag,
                [this](const Token& token, int peer) {
                  Wait(token, {Awaited::kSharedWeight, peer});
                }),
        status(transport.status()),
        steps(plan.steps) {
    // Numbers the slots of the edges that touch this rank consecutively.
    std::vector<bool> here(graph.stages);
    for (int s = 0; s < graph.stages; ++s)
      for (int r : graph.ranks_of[s]) here[s] = here[s] || r == rank;
    int count = 0;
    for (const StageEdge& edge : graph.edges)
      first_slot.push_back(here[edge.from] || here[edge.to] ? count++ : -1);
    slots.resize(static_cast<size_t>(count) * 2 * list.microbatches);
    unreceived.resize(list.buffers.size());
    leaving.resize(list.buffers.size());
    trace.reserve(list.entries.size());
    if (options.check_messages) plan_hash = Hash(WritePlan(plan));
  }

  Slot& At(int edge, int microbatch, bool backward) {
    return slots[(static_cast<size_t>(first_slot[edge]) * 2 + backward) * list.microbatches +
                 microbatch];
  }

  std::string EdgeName(int edge, int microbatch, bool backward) const {
    const StageEdge& e = graph.edges[edge];
    return (backward ? "gradients" : "values") + std::string(" from stage ") +
           std::to_string(backward ? e.to : e.from) + " to stage " +
           std::to_string(backward ? e.from : e.to) + ", microbatch " + std::to_string(microbatch);
  }

  Awaited Message(int edge, int microbatch, bool backward, int peer, bool sends = false) const {
    const StageEdge& e = graph.edges[edge];
    return {backward ? Awaited::kGradients : Awaited::kValues,
            peer,
            backward ? e.to : e.from,
            backward ? e.from : e.to,
            microbatch,
            sends};
  }

  void Wait(const Token& token, const Awaited& awaited) {
    if (transport.Test(token)) return;
    double start = Now();
    transport.WaitFor(token, awaited);
    waited += Now() - start;
  }

  void Put(int edge, int microbatch, bool backward, Bundle bundle) {
    Slot& slot = At(edge, microbatch, backward);
    if (slot.state != Slot::kEmpty)
      throw Error(EdgeName(edge, microbatch, backward),
                  "values from the previous step were never consumed");
    slot.state = Slot::kReady;
    slot.bundle = std::move(bundle);
  }

  Bundle Take(int edge, int microbatch, bool backward) {
    Slot& slot = At(edge, microbatch, backward);
    if (slot.state == Slot::kEmpty)
      throw Error(EdgeName(edge, microbatch, backward),
                  "neither made nor received before they are used");
    if (slot.state == Slot::kPosted) {
      try {
        Wait(slot.token, Message(edge, microbatch, backward, slot.source));
        if (slot.header) ReceiveChecked(slot, edge, microbatch, backward);
      } catch (const Aborted&) {
        throw;
      } catch (const std::exception& e) {
        throw Error(EdgeName(edge, microbatch, backward), e.what());
      }
      slot.token = nullptr;
      slot.header = nullptr;
    }
    slot.state = Slot::kEmpty;
    return std::exchange(slot.bundle, {});
  }

  // The header has arrived; only now is the receive of the message itself posted.
  void ReceiveChecked(Slot& slot, int edge, int microbatch, bool backward) {
    std::string wrong =
        CompareHeaders(*slot.header, HeaderOf(slot.bundle, plan_hash, edge, microbatch, backward));
    if (!wrong.empty()) throw Error(wrong);
    Wait(transport.Recv(slot.source, slot.tag, slot.bundle),
         Message(edge, microbatch, backward, slot.source));
  }

  void CheckBytes(const Bundle& bundle, int edge, int microbatch, bool backward) {
    int64_t expected = body.MessageBytes(edge, microbatch, backward);
    size_t bytes = TotalBytes(bundle);
    if (expected >= 0 && bytes != static_cast<size_t>(expected))
      throw Error(EdgeName(edge, microbatch, backward),
                  SizeText(bytes, 1) + ", where the shapes known beforehand give " +
                      SizeText(static_cast<size_t>(expected), 1),
                  "if its sizes depend on the data, it cannot be sent: put both stages on one rank, "
                  "or cut elsewhere");
  }

  // Times a computation on a device, which has to wait for everything that was launched before.
  template <class Compute>
  auto Marked(Compute compute) {
    if (marks.back().first < 0) marks.back().first = body.Mark();
    auto results = compute();
    marks.back().second = body.Mark();
    return results;
  }

  // Replaces the host's times by those of the device.
  void ReadMarks() {
    const bool on_device =
        std::any_of(marks.begin(), marks.end(), [](const auto& m) { return m.first >= 0; });
    double reached = trace.empty() ? 0 : trace[0].start;
    for (size_t i = 0; on_device && i < trace.size(); ++i) {
      TraceEvent& event = trace[i];
      const auto [begin, end] = marks[i];
      event.start = begin < 0 ? reached : std::max(reached, body.Moment(begin));
      event.end = begin < 0 ? reached : std::max(event.start, body.Moment(end));
      event.waited = 0;
      reached = event.end;
    }
    marks.clear();
  }

  void Forward(int stage, int microbatch) {
    std::vector<Bundle> inputs;
    inputs.reserve(list.edges.in[stage].size());
    for (int e : list.edges.in[stage]) inputs.push_back(Take(e, microbatch, false));
    const std::vector<int>& out = list.edges.out[stage];
    ReleaseSent();
    transport.BeginCompute();
    std::vector<Bundle> outputs =
        Marked([&] { return body.Forward(stage, microbatch, std::move(inputs)); });
    CheckCount(outputs.size(), out.size());
    for (size_t i = 0; i < out.size(); ++i) Put(out[i], microbatch, false, std::move(outputs[i]));
  }

  void Backward(ActionKind kind, int stage, int microbatch) {
    std::vector<Bundle> gradients;
    if (kind == ActionKind::kWeightGrad) {
      transport.BeginCompute();
      CheckCount(Marked([&] { return body.Backward(kind, stage, microbatch, {}); }).size(), 0);
      return;
    }
    gradients.reserve(list.gradients.out[stage].size());
    for (int e : list.gradients.out[stage]) gradients.push_back(Take(e, microbatch, true));
    const std::vector<int>& in = list.gradients.in[stage];
    ReleaseSent();
    transport.BeginCompute();
    std::vector<Bundle> results =
        Marked([&] { return body.Backward(kind, stage, microbatch, std::move(gradients)); });
    CheckCount(results.size(), in.size());
    for (size_t i = 0; i < in.size(); ++i) Put(in[i], microbatch, true, std::move(results[i]));
  }

  static void CheckCount(size_t got, size_t expected) {
    if (got != expected)
      throw Error("the stage returned " + std::to_string(got) + " messages where " +
                  std::to_string(expected) + " edges expect one each");
  }

  // Returns true if a transfer's message may lie on a device. Both of its ranks must agree.
  bool TakesDevices(const RankEntry& entry) const {
    return transport.TakesDevices(entry.peer_rank) &&
           (!cold || entry.action.microbatch >= list.cold_microbatches);
  }

  bool Checks(const RankEntry& entry) const {
    return options.check_messages && !TakesDevices(entry);
  }

  void Send(const RankEntry& entry, size_t index, bool backward) {
    if (entry.peer_rank < 0) return;
    Bundle bundle = Take(entry.edge, entry.action.microbatch, backward);
    if (!TakesDevices(entry)) bundle = body.OnHost(std::move(bundle));
    CheckBytes(bundle, entry.edge, entry.action.microbatch, backward);
    HoldBack(entry.channel);
    LetLeave(entry.channel);
    // If there is a header, the RECV posts the receive of the header, so only the header counts.
    const bool checked = Checks(entry);
    if (checked)
      Post(entry, index, true,
           HeaderBundle(std::make_shared<MessageHeader>(
               HeaderOf(bundle, plan_hash, entry.edge, entry.action.microbatch, backward))));
    Post(entry, index, !checked, std::move(bundle));
  }

  void Post(const RankEntry& entry, size_t index, bool counts, Bundle bundle) {
    Token token = transport.Send(entry.peer_rank, entry.tag, std::move(bundle));
    if (transport.Test(token)) return Leaves(entry.channel, std::move(token));
    sent.push_back({std::move(token), entry.peer_rank, index, counts});
    unreceived[entry.channel] += counts;
  }

  // Waits until the channel has fewer messages without a posted receive than the receiver has
  // receive buffers. Nothing else keeps a rank that only sends from running ahead of the others.
  // Cannot deadlock: plans are free of deadlock even if every SEND blocks until its RECV
  // (plan/lowering/rendezvous.h), and this waits only for RECVs of earlier SENDs.
  void HoldBack(int channel) {
    if (unreceived[channel] < list.buffers[channel]) return;
    auto oldest = std::find_if(sent.begin(), sent.end(), [&](const SentMessage& message) {
      return message.counts && list.entries[message.entry].channel == channel;
    });
    WaitForSend(*oldest);
    Forget(oldest);
  }

  // Keeps a message whose receive is posted, and which its device has yet to send.
  void Leaves(int channel, Token token) {
    if (!transport.HasLeft(token)) leaving[channel].push_back(std::move(token));
  }

  // Waits until the device has sent messages of the channel, if as many as the receiver has buffers
  // are still in memory. Otherwise a host that is far ahead of its device would keep them all.
  // Cannot deadlock: the receives of these messages are posted, and the receiver launches them even
  // while it waits.
  void LetLeave(int channel) {
    std::deque<Token>& messages = leaving[channel];
    auto awaits = [&]() -> Awaited {
      while (!messages.empty() && transport.HasLeft(messages.front())) {
        messages.pop_front();
        ++left;
      }
      const int kept = unreceived[channel] + static_cast<int>(messages.size());
      if (messages.empty() || kept < list.buffers[channel]) return {};
      return {.kind = Awaited::kDevice, .microbatch = left + body.Reached()};
    };
    if (awaits().kind == Awaited::kNothing) return;
    const double start = Now();
    transport.WaitUntil(awaits, std::chrono::microseconds(20));
    waited += Now() - start;
  }

  void WaitForSend(const SentMessage& message) {
    const RankEntry& entry = list.entries[message.entry];
    const Action& a = entry.action;
    try {
      Wait(message.token, Message(entry.edge, a.microbatch, a.kind == ActionKind::kSendBackward,
                                  message.peer, true));
    } catch (const Aborted&) {
      throw;
    } catch (const std::exception& e) {
      throw Error(entry.text, e.what());
    }
  }

  std::deque<SentMessage>::iterator Forget(std::deque<SentMessage>::iterator message) {
    const int channel = list.entries[message->entry].channel;
    unreceived[channel] -= message->counts;
    Leaves(channel, std::move(message->token));
    return sent.erase(message);
  }

  // Frees sent messages whose receive is posted. Called again once the inputs of a computation have
  // arrived, because receivers may have caught up during that wait.
  void ReleaseSent() {
    while (!sent.empty() && transport.Test(sent.front().token)) Forget(sent.begin());
  }

  void Recv(const RankEntry& entry, bool backward) {
    if (entry.peer_rank < 0) return;
    const int microbatch = entry.action.microbatch;
    Slot& slot = At(entry.edge, microbatch, backward);
    if (slot.state != Slot::kEmpty)
      throw Error(EdgeName(entry.edge, microbatch, backward), "received twice");
    slot.bundle = body.Allocate(entry.edge, microbatch, backward, entry.slot, TakesDevices(entry));
    slot.source = entry.peer_rank;
    slot.tag = entry.tag;
    if (Checks(entry)) slot.header = std::make_shared<MessageHeader>();
    slot.token = transport.Recv(slot.source, slot.tag,
                                slot.header ? HeaderBundle(slot.header) : slot.bundle);
    slot.state = Slot::kPosted;
  }

  // Messages that the stage sent may be views of its weights or buffers, which a step changes.
  void WaitForSends(int stage) {
    for (auto at = sent.begin(); at != sent.end();) {
      const Action& a = list.entries[at->entry].action;
      if (a.kind != ActionKind::kSendForward || a.stage != stage) {
        ++at;
        continue;
      }
      WaitForSend(*at);
      at = Forget(at);
    }
  }

  void Execute(const RankEntry& entry, size_t index) {
    const Action& a = entry.action;
    if (a.version >= 0 && IsCompute(a.kind)) body.UseVersion(a.stage, a.version);
    switch (a.kind) {
      case ActionKind::kForward:
        return Forward(a.stage, a.microbatch);
      case ActionKind::kBackward:
      case ActionKind::kInputGrad:
      case ActionKind::kWeightGrad:
        return Backward(a.kind, a.stage, a.microbatch);
      case ActionKind::kOverlap:
        Forward(a.stage, a.microbatch);
        return Backward(ActionKind::kBackward, a.overlap_stage, a.overlap_microbatch);
      case ActionKind::kSendForward:
      case ActionKind::kSendBackward:
        return Send(entry, index, a.kind == ActionKind::kSendBackward);
      case ActionKind::kRecvForward:
      case ActionKind::kRecvBackward:
        return Recv(entry, a.kind == ActionKind::kRecvBackward);
      case ActionKind::kReduceGrad:
        for (int group : entry.groups) reducer.Begin(group);
        return;
      case ActionKind::kStep:
        reducer.Finish();
        WaitForSends(a.stage);
        transport.BeginCompute();
        Marked([&] { return body.Step(a.stage), 0; });
        return;
      case ActionKind::kLoad:
        transport.BeginCompute();
        return body.Load(a.stage);
      case ActionKind::kEvict:
        transport.BeginCompute();
        return body.Evict(a.stage);
      case ActionKind::kUnshard:
      case ActionKind::kReshard:
        return;
    }
  }

  std::string Where(const RankEntry& entry) const {
    const Action& a = entry.action;
    std::string where = "rank " + std::to_string(rank) + ", stage " + std::to_string(a.stage);
    if (a.microbatch >= 0) where += ", microbatch " + std::to_string(a.microbatch);
    return where + ", action " + entry.text;
  }

  void RunStep(int64_t step, bool last, bool is_cold) {
    cold = is_cold;
    trace.clear();
    marks.clear();
    double start = Now();
    // Set for each run, because a body may serve several executors.
    body.OnReady(last ? [this](int group) { reducer.BeginEarly(group); }
                      : std::function<void(int)>([](int) {}));
    for (size_t i = 0; i < list.entries.size(); ++i) {
      const RankEntry& entry = list.entries[i];
      const Action& a = entry.action;
      const bool update = a.kind == ActionKind::kReduceGrad || a.kind == ActionKind::kStep;
      if (update && !last) continue;
      status.Begin(step, static_cast<int>(i), a.stage, a.microbatch, entry.text, start);
      waited = 0;
      marks.emplace_back(-1, -1);
      try {
        transport.BeginAction(step, static_cast<int>(i));
        // Also lets the transport make progress before work that may take long.
        ReleaseSent();
        reducer.Advance();
        Execute(entry, i);
      } catch (const Aborted&) {
        throw;
      } catch (const std::exception& e) {
        throw Error(Where(entry), e.what());
      }
      double end = Now();
      trace.push_back(
          {entry.action, start, end, waited, options.trace_memory ? ResidentBytes() : 0});
      start = end;
    }
    reducer.Finish();  // a list may have REDUCE_GRAD without STEP
    status.EndStep(last ? step + steps : step, start);
  }

  const StageGraph& graph;
  StageBody& body;
  Transport& transport;
  const ExecutorOptions options;
  const int rank;
  const RankList list;
  std::vector<int> first_slot;  // by edge; -1: an edge between other ranks
  std::vector<Slot> slots;
  std::deque<SentMessage> sent;  // messages whose receive is not known to be posted
  std::vector<int> unreceived;   // by channel: how many of them
  std::vector<std::deque<Token>> leaving;  // by channel: see Leaves
  int left = 0;                            // how many of these have been sent
  SharedReducer reducer;
  StatusFile& status;
  uint64_t plan_hash = 0;
  const int steps;  // in the plan
  double waited = 0;
  bool cold = false;  // the run is
  std::vector<TraceEvent> trace;
  std::vector<std::pair<int, int>> marks;  // by event of `trace`, until they are read
};

Executor::Executor(const Plan& plan, const StageGraph& graph,
                   const std::vector<SharedGroup>& groups, StageBody& body, Transport& transport,
                   const ExecutorOptions& options)
    : state_(std::make_unique<State>(plan, graph, groups, body, transport, options)) {}

Executor::~Executor() = default;

void Executor::RunStep(int64_t step, bool last, bool cold) { state_->RunStep(step, last, cold); }

bool Executor::ColdOnHostOnly() const {
  return state_->list.cold_microbatches >= state_->list.microbatches;
}

const std::vector<TraceEvent>& Executor::trace() const {
  state_->ReadMarks();
  return state_->trace;
}

}  // namespace pipewright
