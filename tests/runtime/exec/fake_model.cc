#include "tests/runtime/exec/fake_model.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>

#include "plan/actions.h"
#include "plan/plan_text.h"
#include "plan/stage_graph.h"

namespace pipewright {

namespace {

uint64_t Mix(uint64_t a, uint64_t b) {
  a = (a ^ (b + 0x9e3779b97f4a7c15ull + (a << 6) + (a >> 2))) * 0xff51afd7ed558ccdull;
  return a ^ (a >> 33);
}

// Differs for a + b and b + a, and for (a + b) + c and a + (b + c), unless any order will do.
uint64_t Add(const FakeCase& c, uint64_t into, uint64_t from) {
  return into * (c.any_order ? 1 : 31) + from;
}

uint64_t SumOfTerms(const FakeCase& c, const SharedGroup& group,
                    const std::vector<uint64_t>& given) {
  std::vector<uint64_t> terms;
  for (size_t h = 0; h < group.size(); ++h)
    if (h > 0 && group[h].term == group[h - 1].term)
      terms.back() = Add(c, terms.back(), given[h]);
    else
      terms.push_back(given[h]);
  uint64_t sum = terms[0];
  for (size_t t = 1; t < terms.size(); ++t) sum = Add(c, sum, terms[t]);
  return sum;
}

constexpr size_t kGradientWords = 3;  // words of a shared weight's gradient

size_t Words(const FakeCase& c, int edge, int microbatch, bool backward) {
  if (c.message_words) return c.message_words;
  return 1 + (edge * 7 + microbatch * 3 + backward) % 5;
}

// Odd edges carry two values.
bool TwoParts(int edge) { return edge % 2; }

uint64_t ForwardValue(int stage, int microbatch, uint64_t weight,
                      const std::vector<uint64_t>& inputs) {
  uint64_t value = Mix(Mix(stage + 1, microbatch + 1), weight);
  for (uint64_t input : inputs) value = Mix(value, input);
  return value;
}

uint64_t BackwardValue(int stage, uint64_t forward, const std::vector<uint64_t>& gradients) {
  uint64_t value = Mix(forward, stage + 1000);
  for (uint64_t gradient : gradients) value = Mix(value, gradient);
  return value;
}

FakeWeights InitialWeights(const FakeCase& c) {
  FakeWeights weights;
  for (int s = 0; s < c.graph.stages; ++s) weights.stages.push_back(Mix(s, 77));
  for (size_t g = 0; g < c.groups.size(); ++g)
    weights.shared.emplace_back(c.groups[g].size(), Mix(g, 99));
  return weights;
}

// Returns the weight with which a stage computes on one rank.
uint64_t UsedWeight(const FakeCase& c, const FakeWeights& weights, int stage, int rank) {
  uint64_t weight = weights.stages[stage];
  for (size_t g = 0; g < c.groups.size(); ++g)
    for (size_t h = 0; h < c.groups[g].size(); ++h)
      if (c.groups[g][h].stage == stage && c.groups[g][h].rank == rank)
        weight = Mix(weight, weights.shared[g][h]);
  return weight;
}

// Returns true if a stage has its own weight: replicas only have shared ones.
bool StepsAlone(const FakeCase& c, int stage) { return c.graph.ranks_of[stage].size() == 1; }

uint64_t NewWeight(uint64_t weight, uint64_t gradient) { return Mix(weight, gradient); }

uint64_t* Data(const Bundle& bundle, size_t region = 0) {
  return static_cast<uint64_t*>(bundle.regions[region].data);
}

}  // namespace

FakeWeights RunReference(const FakeCase& c) {
  FakeWeights weights = InitialWeights(c);
  EdgeIndex edges = IndexEdges(c.graph);
  const int stages = c.graph.stages;
  const int per_step = c.plan.microbatches, steps = c.steps * c.plan.steps;
  for (int step = 0; step < steps; ++step) {
    const int first = step % c.plan.steps * per_step;  // microbatch numbers continue within a plan
    std::vector<uint64_t> sums(stages);
    std::vector<std::vector<uint64_t>> shared;
    for (const SharedGroup& group : c.groups) shared.emplace_back(group.size(), 0);
    for (int m = first; m < first + per_step; ++m) {
      std::vector<uint64_t> values(stages), gradients(stages);
      for (int s = 0; s < stages; ++s) {
        std::vector<uint64_t> inputs;
        for (int e : edges.in[s]) inputs.push_back(values[c.graph.edges[e].from]);
        values[s] = ForwardValue(s, m, UsedWeight(c, weights, s, RankOf(c.graph, s, m)), inputs);
      }
      for (int s = stages - 1; s >= 0; --s) {
        std::vector<uint64_t> arriving;
        for (int e : edges.out[s])
          if (c.graph.edges[e].gradient) arriving.push_back(gradients[c.graph.edges[e].to]);
        gradients[s] = BackwardValue(s, values[s], arriving);
        sums[s] += gradients[s] * (m + 3);
        for (size_t g = 0; g < c.groups.size(); ++g)
          for (size_t h = 0; h < c.groups[g].size(); ++h)
            if (c.groups[g][h].stage == s && c.groups[g][h].rank == RankOf(c.graph, s, m))
              shared[g][h] += gradients[s] * (m + 5) + h;
      }
    }
    if (c.plan.forward_only) continue;
    for (int s = 0; s < stages; ++s)
      if (StepsAlone(c, s)) weights.stages[s] = NewWeight(weights.stages[s], sums[s]);
    for (size_t g = 0; g < c.groups.size(); ++g) {
      uint64_t sum = SumOfTerms(c, c.groups[g], shared[g]);
      for (uint64_t& weight : weights.shared[g]) weight = NewWeight(weight, sum);
    }
  }
  return weights;
}

FakeBody::FakeBody(const FakeCase& c, int rank, Hook hook)
    : case_(c),
      rank_(rank),
      hook_(hook ? std::move(hook) : [](const std::string&, int, int) {}),
      weights_(InitialWeights(c)),
      sums_(c.graph.stages),
      done_(c.graph.stages),
      live_(std::make_shared<std::atomic<int>>(0)) {
  for (const SharedGroup& group : c.groups) {
    shared_sums_.emplace_back();
    for (size_t h = 0; h < group.size(); ++h) shared_sums_.back().push_back(Make(kGradientWords));
  }
  *live_ = 0;
}

Bundle FakeBody::Make(size_t words, bool received) {
  ++*live_;
  Bundle bundle;
  if (auto place = received && memory ? memory(words * sizeof(uint64_t)) : nullptr) {
    void* data = place.get();
    std::memset(data, 0xEE, words * sizeof(uint64_t));
    bundle.owner = {data, [place = std::move(place), live = live_](void*) { --*live; }};
    bundle.regions.push_back({data, words * sizeof(uint64_t)});
    return bundle;
  }
  auto* memory = new std::vector<uint64_t>(words);
  bundle.owner = std::shared_ptr<void>(memory, [memory, live = live_](void*) {
    delete memory;
    --*live;
  });
  bundle.regions.push_back({memory->data(), words * sizeof(uint64_t)});
  return bundle;
}

Bundle FakeBody::Allocate(int edge, int microbatch, bool backward, int slot, bool /*on_device*/) {
  hook_("Allocate", backward ? case_.graph.edges[edge].from : case_.graph.edges[edge].to,
        microbatch);
  size_t words = Words(case_, edge, microbatch, backward) + words_off_by_one;
  Bundle bundle = Make(words + (TwoParts(edge) ? 2 : 0), true);
  if (TwoParts(edge)) {
    bundle.regions[0].bytes = words * sizeof(uint64_t);
    bundle.regions.push_back({Data(bundle) + words, 2 * sizeof(uint64_t)});
  }
  EXPECT_GE(slot, 0);
  std::weak_ptr<void>& last = slots_[{edge, backward, slot}];
  EXPECT_TRUE(last.expired()) << "slot " << slot << " of edge " << edge << " holds a message";
  last = bundle.owner;
  return bundle;
}

Bundle FakeBody::Message(int edge, int microbatch, bool backward, uint64_t value) {
  size_t words = Words(case_, edge, microbatch, backward);
  Bundle bundle = Make(words + (TwoParts(edge) ? 2 : 0));
  for (size_t i = 0; i < words; ++i) Data(bundle)[i] = value + i;
  if (TwoParts(edge)) {
    bundle.regions[0].bytes = words * sizeof(uint64_t);
    bundle.regions.push_back({Data(bundle) + words, 2 * sizeof(uint64_t)});
    Data(bundle, 1)[0] = edge, Data(bundle, 1)[1] = microbatch;
  }
  return bundle;
}

uint64_t FakeBody::Read(const Bundle& bundle, int edge, int microbatch, bool backward) const {
  size_t words = Words(case_, edge, microbatch, backward);
  EXPECT_EQ(bundle.regions.size(), TwoParts(edge) ? 2u : 1u);
  EXPECT_EQ(bundle.regions[0].bytes, words * sizeof(uint64_t));
  uint64_t value = Data(bundle)[0];
  bool intact = true;
  for (size_t i = 0; i < words; ++i) intact = intact && Data(bundle)[i] == value + i;
  EXPECT_TRUE(intact) << "message of edge " << edge << " is damaged";
  if (TwoParts(edge)) {
    EXPECT_EQ(Data(bundle, 1)[0], static_cast<uint64_t>(edge));
    EXPECT_EQ(Data(bundle, 1)[1], static_cast<uint64_t>(microbatch));
  }
  return value;
}

std::vector<Bundle> FakeBody::Forward(int stage, int microbatch, std::vector<Bundle> inputs) {
  hook_("Forward", stage, microbatch);
  EdgeIndex edges = IndexEdges(case_.graph);
  std::vector<uint64_t> values;
  EXPECT_EQ(inputs.size(), edges.in[stage].size());
  for (size_t i = 0; i < inputs.size(); ++i)
    values.push_back(Read(inputs[i], edges.in[stage][i], microbatch, false));
  uint64_t value =
      ForwardValue(stage, microbatch, UsedWeight(case_, weights_, stage, rank_), values);
  kept_[{stage, microbatch}] = value;
  std::vector<Bundle> outputs;
  for (int e : edges.out[stage]) outputs.push_back(Message(e, microbatch, false, value));
  return outputs;
}

std::vector<Bundle> FakeBody::Backward(ActionKind kind, int stage, int microbatch,
                                       std::vector<Bundle> gradients) {
  hook_("Backward", stage, microbatch);
  EdgeIndex edges = IndexEdges(case_.graph);
  std::pair key(stage, microbatch);
  std::vector<Bundle> results;
  uint64_t value;
  if (kind == ActionKind::kWeightGrad) {
    EXPECT_TRUE(gradients.empty());
    value = kept_gradients_.at(key);
    kept_gradients_.erase(key);
  } else {
    std::vector<int> out = edges.out[stage];
    std::erase_if(out, [&](int e) { return !case_.graph.edges[e].gradient; });
    EXPECT_EQ(gradients.size(), out.size());
    std::vector<uint64_t> arriving;
    for (size_t i = 0; i < gradients.size(); ++i)
      arriving.push_back(Read(gradients[i], out[i], microbatch, true));
    value = BackwardValue(stage, kept_.at(key), arriving);
    kept_.erase(key);
    for (int e : edges.in[stage])
      if (case_.graph.edges[e].gradient) results.push_back(Message(e, microbatch, true, value));
  }
  if (kind == ActionKind::kInputGrad) {
    kept_gradients_[key] = value;
    return results;
  }
  sums_[stage] += value * (microbatch + 3);
  for (size_t g = 0; g < case_.groups.size(); ++g)
    for (size_t h = 0; h < case_.groups[g].size(); ++h)
      if (case_.groups[g][h].stage == stage && case_.groups[g][h].rank == rank_)
        for (size_t i = 0; i < kGradientWords; ++i)
          Data(shared_sums_[g][h])[i] += value * (microbatch + 5) + h;
  Announce(stage);
  return results;
}

// Announces every second group as soon as the last backward of its stages is done.
void FakeBody::Announce(int stage) {
  ++done_[stage];
  for (size_t g = 0; g < case_.groups.size(); g += 2) {
    bool here = false, all = true;
    for (const SharedHolder& holder : case_.groups[g]) {
      if (holder.rank != rank_) continue;
      here = here || holder.stage == stage;
      int own = 0;
      for (int m = 0; m < case_.plan.microbatches; ++m)
        own += RankOf(case_.graph, holder.stage, m) == rank_;
      all = all && done_[holder.stage] == own;
    }
    if (here && all && ready_) ready_(static_cast<int>(g));
  }
}

Bundle FakeBody::Gradient(int group, int holder) {
  EXPECT_EQ(case_.groups[group][holder].rank, rank_);
  hook_("Gradient", case_.groups[group][holder].stage, -1);
  return shared_sums_[group][holder];
}

Bundle FakeBody::Scratch(int group) {
  hook_("Scratch", case_.groups[group][0].stage, -1);
  return Make(kGradientWords + words_off_by_one);
}

void FakeBody::Add(const Bundle& into, const Bundle& from) {
  hook_("Add", -1, -1);
  for (size_t i = 0; i < kGradientWords; ++i)
    Data(into)[i] = pipewright::Add(case_, Data(into)[i], Data(from)[i]);
}

void FakeBody::Copy(const Bundle& into, const Bundle& from) {
  hook_("Copy", -1, -1);
  std::copy_n(Data(from), kGradientWords, Data(into));
}

void FakeBody::Step(int stage) {
  hook_("Step", stage, -1);
  if (StepsAlone(case_, stage))
    weights_.stages[stage] = NewWeight(weights_.stages[stage], sums_[stage]);
  sums_[stage] = 0;
  done_[stage] = 0;
  for (size_t g = 0; g < case_.groups.size(); ++g) {
    for (size_t h = 0; h < case_.groups[g].size(); ++h) {
      if (case_.groups[g][h].stage != stage || case_.groups[g][h].rank != rank_) continue;
      uint64_t* sum = Data(shared_sums_[g][h]);
      EXPECT_EQ(sum[0], sum[1]);
      EXPECT_EQ(sum[0], sum[2]);
      weights_.shared[g][h] = NewWeight(weights_.shared[g][h], sum[0]);
      std::fill_n(sum, kGradientWords, 0);
    }
  }
}

void FakeBody::Load(int stage) {
  hook_("Load", stage, -1);
  if (!case_.offloads) StageBody::Load(stage);
}

void FakeBody::Evict(int stage) {
  hook_("Evict", stage, -1);
  if (!case_.offloads) StageBody::Evict(stage);
}

void RunAndCompare(const FakeCase& c, Transport& transport, FakeBody::Hook hook,
                   const BodyAround& around) {
  const int rank = transport.rank();
  FakeBody body(c, rank, std::move(hook));
  body.memory = [&transport](size_t bytes) { return transport.Memory(bytes); };
  {
    const std::unique_ptr<StageBody> outer = around ? around(body) : nullptr;
    Executor executor(c.plan, c.graph, c.groups, outer ? *outer : body, transport, c.options);
    for (int i = 0; i < c.steps; ++i) {
      executor.RunStep(c.first_step + i);
      const auto& trace = executor.trace();
      ASSERT_EQ(trace.size(), c.plan.ranks[rank].size());
      for (size_t k = 0; k < trace.size(); ++k) {
        EXPECT_EQ(trace[k].action, c.plan.ranks[rank][k]);
        EXPECT_LE(trace[k].start, trace[k].end);
        EXPECT_LE(trace[k].waited, trace[k].end - trace[k].start + 1e-6);
        EXPECT_GE(trace[k].start, k ? trace[k - 1].end : 0);
      }
    }
    transport.AllGather("");  // all ranks have used their messages
  }
  for (int i = 0; i < 1000000 && transport.Pending() > 0; ++i) usleep(100);
  EXPECT_EQ(transport.Pending(), 0u);
  EXPECT_EQ(body.live_bundles(), 0);
  FakeWeights expected = RunReference(c);
  for (int s = 0; s < c.graph.stages; ++s) {
    const std::vector<int>& ranks = c.graph.ranks_of[s];
    if (std::find(ranks.begin(), ranks.end(), rank) == ranks.end()) continue;
    EXPECT_EQ(body.weights().stages[s], expected.stages[s]) << "rank " << rank << ", stage " << s;
  }
  for (size_t g = 0; g < c.groups.size(); ++g) {
    for (size_t h = 0; h < c.groups[g].size(); ++h) {
      if (c.groups[g][h].rank != rank) continue;
      EXPECT_EQ(body.weights().shared[g][h], expected.shared[g][h])
          << "rank " << rank << ", group " << g << ", holder " << h;
    }
  }
}

}  // namespace pipewright
