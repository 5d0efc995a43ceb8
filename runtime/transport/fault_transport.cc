#include "runtime/transport/fault_transport.h"

#include <unistd.h>

#include <algorithm>
#include <charconv>
#include <chrono>
#include <csignal>
#include <deque>
#include <random>
#include <thread>

#include "base/text.h"

namespace pipewright {

namespace {

using Clock = std::chrono::steady_clock;

template <class T>
T Number(const std::string& text, const std::string& option) {
  T value{};
  auto [end, failure] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (failure != std::errc() || end != text.data() + text.size())
    throw Error("PIPEWRIGHT_FAULTS: " + option, "\"" + text + "\" is not a number");
  return value;
}

// The token of a send that may not have been posted yet.
struct FaultToken : Completion {
  Token inner;
  bool dropped = false;
};

struct Held {
  std::shared_ptr<FaultToken> token;
  int peer, tag;
  Bundle bundle;
  Clock::time_point due;
  bool until_another;  // hold until another message is posted or the rank waits
};

void Die(const std::string& how) {
  if (how == "kill") raise(SIGKILL);
  if (how == "stop") raise(SIGSTOP);
  if (how == "segfault") raise(SIGSEGV);
  if (how == "exit") std::exit(0);
  if (how == "leave") _exit(0);
  if (how == "throw") throw Error("injected fault (PIPEWRIGHT_FAULTS)");
}

}  // namespace

FaultOptions ParseFaults(const std::string& text) {
  FaultOptions options;
  if (text.empty()) return options;
  for (const std::string& part : Split(text, ',')) {
    size_t equals = part.find('=');
    std::string name = part.substr(0, equals);
    std::string value = equals == std::string::npos ? "" : part.substr(equals + 1);
    std::vector<std::string> fields = Split(value, ':');
    if (name == "delay") {
      options.delay = Number<double>(value, part);
    } else if (name == "reorder") {
      options.reorder = Number<double>(value, part);
    } else if (name == "seed") {
      options.seed = Number<uint64_t>(value, part);
    } else if (name == "drop" && fields.size() == 2) {
      options.drops.push_back({Number<int>(fields[0], part), Number<int64_t>(fields[1], part)});
    } else if (name == "die" && fields.size() == 4) {
      const std::vector<std::string> kinds = {"kill", "segfault", "exit", "leave", "stop", "throw"};
      if (std::find(kinds.begin(), kinds.end(), fields[3]) == kinds.end())
        throw Error("PIPEWRIGHT_FAULTS: " + part,
                    "unknown kind of fault; expected one of " + Join(kinds, ", "));
      options.deaths.push_back({Number<int>(fields[0], part), Number<int64_t>(fields[1], part),
                                Number<int>(fields[2], part), fields[3]});
    } else {
      throw Error(
          "PIPEWRIGHT_FAULTS: " + part, "unknown fault",
          "expected delay=S, reorder=P, seed=N, drop=RANK:MESSAGE or die=RANK:STEP:ENTRY:HOW");
    }
  }
  return options;
}

struct FaultTransport::State {
  State(Transport& inner, const FaultOptions& options)
      : inner(inner),
        options(options),
        random(options.seed * 1000 + inner.rank()),
        held(inner.size()) {}

  double Chance() { return std::uniform_real_distribution<double>(0, 1)(random); }

  void Post(std::deque<Held>& queue) {
    Held& first = queue.front();
    first.token->inner = inner.Send(first.peer, first.tag, std::move(first.bundle));
    queue.pop_front();
  }

  // Posts the messages that are due. `waits`: the rank does nothing else until something arrives.
  void Pump(bool waits) {
    for (auto& queue : held)
      while (!queue.empty() && (waits || !queue.front().until_another) &&
             queue.front().due <= Clock::now())
        Post(queue);
  }

  bool Holds() const {
    return std::any_of(held.begin(), held.end(), [](const auto& queue) { return !queue.empty(); });
  }

  Transport& inner;
  const FaultOptions options;
  std::mt19937_64 random;
  std::vector<std::deque<Held>> held;  // by peer
  int64_t sends = 0;
};

FaultTransport::FaultTransport(Transport& inner, const FaultOptions& options)
    : WrappedTransport(inner), state_(std::make_unique<State>(inner, options)) {}

FaultTransport::~FaultTransport() {
  try {
    for (auto& queue : state_->held)
      while (!queue.empty()) state_->Post(queue);
  } catch (const std::exception&) {  // another rank has failed
  }
}

Token FaultTransport::Send(int peer, int tag, Bundle bundle) {
  State& s = *state_;
  auto token = std::make_shared<FaultToken>();
  int64_t number = s.sends++;
  for (const FaultOptions::Drop& drop : s.options.drops)
    if (drop.rank == rank() && drop.message == number) {
      token->dropped = true;
      return token;
    }
  for (int other = 0; other < size(); ++other)
    if (other != peer && !s.held[other].empty()) s.held[other].front().until_another = false;
  auto late = std::chrono::duration<double>(s.options.delay > 0 ? s.options.delay * s.Chance() : 0);
  bool wait = s.options.reorder > 0 && s.Chance() < s.options.reorder;
  s.held[peer].push_back({token, peer, tag, std::move(bundle),
                          Clock::now() + std::chrono::duration_cast<Clock::duration>(late), wait});
  s.Pump(false);
  return token;
}

Token FaultTransport::Recv(int peer, int tag, Bundle bundle) {
  auto token = std::make_shared<FaultToken>();
  token->inner = state_->inner.Recv(peer, tag, std::move(bundle));
  return token;
}

bool FaultTransport::Test(const Token& token) {
  auto& t = static_cast<FaultToken&>(*token);
  state_->Pump(false);
  return t.dropped || (t.inner && state_->inner.Test(t.inner));
}

void FaultTransport::Wait(const Token& token) {
  // Only this thread can post the messages that are held back.
  while (!Test(token)) {
    state_->Pump(true);
    std::this_thread::sleep_for(std::chrono::microseconds(50));
  }
}

void FaultTransport::BeginCompute() {
  state_->Pump(false);
  state_->inner.BeginCompute();
}

size_t FaultTransport::Pending() {
  state_->Pump(true);
  size_t held = 0;
  for (const auto& queue : state_->held) held += queue.size();
  return held + state_->inner.Pending();
}

void FaultTransport::BeginAction(int64_t step, int entry) {
  for (const FaultOptions::Death& death : state_->options.deaths)
    if (death.rank == rank() && death.step == step && death.entry == entry) Die(death.how);
}

std::vector<std::string> FaultTransport::AllGather(const std::string& bytes) {
  while (state_->Holds()) {
    state_->Pump(true);
    std::this_thread::sleep_for(std::chrono::microseconds(50));
  }
  return state_->inner.AllGather(bytes);
}

}  // namespace pipewright
