// Tests how lists are compared with autograd's body, before and while they are used.
#include <ATen/Parallel.h>

#include <limits>

#include "base/error.h"
#include "runtime/exec/clock.h"
#include "runtime/recorded/bit_compare.h"
#include "runtime/recorded/perturbed_inputs.h"
#include "runtime/stage/spot_check.h"
#include "tests/runtime/recorded_cases.h"

namespace pipewright {

// Replaces the index, or the first trained weight or input, of the first `operation` of the lists
// by a constant.
static void Freeze(RecordedBody& body, const std::string& operation, const at::Tensor& index) {
  RecordedGraph& graph = *body.graph;
  const bool forward = operation == "aten::index";
  for (InstructionList* list : forward ? std::vector{&graph.forward}
                                       : std::vector{&graph.backward, &graph.weight_grad})
    for (Instruction& one : *list) {
      if (one.op.schema().name() != operation) continue;
      Operand& operand = forward ? one.operands[1].items[0] : one.operands[1];
      operand = {};
      operand.constant = forward ? index : at::ones({3, 3});
      break;
    }
}

// With a frozen index, both bodies agree as long as the index does not change.
TEST(RecordedBody, IsComparedOnOtherInputs) {
  Case c{"frozen",
         "def forward(self, tokens, x):\n  return self.w1[tokens] * x * self.w0\n",
         {Trained({2}), at::rand({7})},
         {}};
  LoadedModule module = Make(c, true);
  const at::Tensor tokens = at::tensor({int64_t{1}, int64_t{2}}), x = at::randn({2});
  for (int i = 0; i < 4; ++i) RunOne(module, {tokens, x}, 1, false);
  const std::shared_ptr<RecordedBody> body = module.recorded->bodies[0];
  ASSERT_EQ(body->state, RecordedBody::State::kUsed) << body->refusal;
  const std::vector<c10::IValue> given = {tokens, x};
  Freeze(*body, "aten::index", tokens);
  EXPECT_EQ(CompareBodies(module, body, given), "");
  Tensors seen;
  EXPECT_TRUE(NoteValues(given, seen));
  EXPECT_NE(CompareBodies(module, body, PerturbedInputs(given, seen, 0)).find("output 0"),
            std::string::npos);
}

// Until an input has had two values, lists are only valid for one.
TEST(RecordedBody, IsComparedAgainForASecondValue) {
  Case c{"one value",
         "def forward(self, tokens, x):\n  return self.w1[tokens] * x * self.w0\n",
         {Trained({2}), at::rand({7})},
         {}};
  LoadedModule eager = Make(c, false), lists = Make(c, true);
  using State = RecordedBody::State;
  const int64_t tokens[] = {1, 1, 1, 1, 1, 1, 2, 2, 3, 1};
  const State states[] = {State::kWatched, State::kChecked, State::kUsed,    State::kUsed,
                          State::kUsed,    State::kUsed,    State::kChecked, State::kUsed,
                          State::kUsed,    State::kUsed};
  for (size_t i = 0; i < std::size(tokens); ++i) {
    const Tensors inputs = {at::full({2}, tokens[i], at::kLong), at::randn({2})};
    const Result a = RunOne(eager, inputs, i, i % 2), b = RunOne(lists, inputs, i, i % 2);
    ExpectSame(a.outputs, b.outputs, "output");
    ExpectSame(a.inputs, b.inputs, "gradient of input");
    EXPECT_EQ(lists.recorded->bodies[0]->state, states[i]) << i;
  }
}

TEST(PerturbedInputs, DifferInEveryElement) {
  at::manual_seed(2);
  const float inf = std::numeric_limits<float>::infinity();
  std::vector<c10::IValue> inputs = {
      at::randn({3, 4}),
      at::relu(at::randn({50})),
      at::randn({3, 4}).to(at::kHalf),
      at::randn({30}).to(at::kBFloat16),
      at::rand({}, at::kDouble),
      at::ones({2, 2}),
      at::zeros({3}),
      at::tensor({0.f, -inf, 0.f}),
      at::randn({2, 3}, at::kComplexFloat),
      at::randn({4, 1, 3}).expand({4, 5, 3}),
      at::randn({6, 4}).t(),
      at::randint(0, 3, {60}, at::kLong),
      at::tensor({-100, 5, 7}).to(at::kInt),
      at::randint(0, 200, {60}).to(at::kByte),
      at::tensor({4, 4}),
      at::rand({9}) > 0.5,
      int64_t{3},
  };
  Tensors seen;
  EXPECT_TRUE(NoteValues({inputs.begin(), inputs.end()}, seen));
  EXPECT_TRUE(HasOneValue(seen));
  inputs[14] = at::tensor({9, 9});
  EXPECT_TRUE(NoteValues(inputs, seen));
  EXPECT_FALSE(NoteValues(inputs, seen));
  EXPECT_FALSE(HasOneValue(seen));
  for (int draw : {0, 2}) {
    const std::vector<c10::IValue> others = PerturbedInputs(inputs, seen, draw);
    ASSERT_EQ(others.size(), inputs.size());
    for (size_t i = 0; i + 1 < inputs.size(); ++i) {
      const at::Tensor &x = inputs[i].toTensor(), &y = others[i].toTensor();
      EXPECT_TRUE(Geometry::Of(x).Fits(y)) << i;
      EXPECT_TRUE(x.ne(y).all().item<bool>()) << i << "\n" << x << y;
      EXPECT_FALSE(x.is_alias_of(y)) << i;
      if (at::isIntegralType(x.scalar_type(), false)) {
        EXPECT_TRUE(at::isin(y, at::cat({x, seen[i]})).all().item<bool>()) << i;
      }
      if (x.is_floating_point() && i < 4) {
        EXPECT_GE(y.min().item<double>(), x.min().item<double>());
        EXPECT_LE(y.max().item<double>(), x.max().item<double>());
      }
    }
  }
}

// Returns microbatches that are checked while lists run, by RunOne's key.
static std::vector<uint64_t> SpotChecked(size_t count) {
  std::vector<uint64_t> found;
  for (uint64_t i = 0; found.size() < count; ++i)
    if (IsSpotChecked({7, 1, i}, -1)) found.push_back(i);
  return found;
}

TEST(SpotCheck, OneMicrobatchInAThousand) {
  int checked = 0, both = 0;
  for (uint64_t step = 0; step < 1000; ++step)
    for (uint64_t i = 0; i < 100; ++i) {
      checked += IsSpotChecked({1, step, i}, 2);
      both += IsSpotChecked({1, step, i}, 2) && IsSpotChecked({1, step, i}, 3);
    }
  EXPECT_GT(checked, 60);
  EXPECT_LT(checked, 140);
  EXPECT_LT(both, 5);
}

TEST(SpotCheck, ChangesNoBit) {
  const std::vector<uint64_t> keys = SpotChecked(10);
  for (const Case& c : Cases()) {
    if (!c.refusal.empty()) continue;
    LoadedModule eager = Make(c, false), lists = Make(c, true);
    for (size_t i = 0; i < c.inputs.size(); ++i) {
      const std::string what = c.name + ", microbatch " + std::to_string(i);
      const bool split = i % 4 > 1;
      Result a = RunOne(eager, c.inputs[i], keys[i], split),
             b = RunOne(lists, c.inputs[i], keys[i], split);
      ExpectSame(a.outputs, b.outputs, what + ", output");
      ExpectSame(a.inputs, b.inputs, what + ", gradient of input");
      ExpectSame(a.weights, b.weights, what + ", gradient of weight");
      ExpectSame(a.buffers, b.buffers, what + ", buffer");
    }
    EXPECT_EQ(lists.recorded->bodies[0]->state, RecordedBody::State::kUsed) << c.name;
  }
}

TEST(SpotCheck, EndsTheRunWhereListsAreWrong) {
  const uint64_t checked = SpotChecked(1)[0];
  struct Fault {
    std::string operation, where;
  };
  for (const Fault& fault : {Fault{"aten::index", "output 0"}, Fault{"aten::mm", "gradient of"}})
    for (bool split : {false, true}) {
      Case c{"frozen",
             "def forward(self, tokens, x):\n  return self.w1[tokens] * torch.mm(x, self.w0)\n",
             {Trained({3, 3}), at::rand({7, 3})},
             {}};
      LoadedModule module = Make(c, true);
      auto inputs = [](int64_t i) {
        return Tensors{at::tensor({i, i + 1, i + 2}), at::randn({3, 3})};
      };
      for (int64_t i = 0; i < 4; ++i) RunOne(module, inputs(i % 2), checked + 1, split);
      RecordedBody& body = *module.recorded->bodies[0];
      ASSERT_EQ(body.state, RecordedBody::State::kUsed) << body.refusal;
      Freeze(body, fault.operation, at::tensor({0, 1, 2}));
      RunOne(module, inputs(1), checked + 1, split);  // not checked
      try {
        RunOne(module, inputs(2), checked, split);
        FAIL() << fault.operation;
      } catch (const Error& e) {
        const std::string text = e.what();
        for (const std::string& part : {std::string("module -1: "), fault.operation, fault.where,
                                        std::string("\"body\": \"autograd\"")})
          EXPECT_NE(text.find(part), std::string::npos) << text;
      }
    }
}

// Compares the shortest of many runs of each, taken in turns. Excludes the optimizer and messages,
// which a step also has.
TEST(SpotCheck, CostsLittle) {
  at::set_num_threads(1);
  const std::string layer = "  x = x + torch.gelu(torch.linear(torch.layer_norm(x, [96]), self.w0))\n";
  Case c{"layers",
         "def forward(self, x):\n" + layer + layer + layer + "  return x\n",
         {Trained({96, 96})},
         Batches({{64, 96}})};
  LoadedModule module = Make(c, true);
  const uint64_t checked = SpotChecked(1)[0];
  for (size_t i = 0; i < 6; ++i) RunOne(module, c.inputs[i], checked + 1, false);
  ASSERT_EQ(module.recorded->bodies[0]->state, RecordedBody::State::kUsed);
  double shortest[2] = {1, 1};
  for (size_t i = 0; i < 400; ++i) {
    const double start = Now();
    RunOne(module, c.inputs[6], checked + (i + 1) % 2, false);
    shortest[i % 2] = std::min(shortest[i % 2], Now() - start);
  }
  const double share = (shortest[1] - shortest[0]) / shortest[0] / 1000;
  std::cout << "spot checks take " << 100 * share << " % of the time of forward and backward\n";
  EXPECT_LT(share, 0.002);
}

}  // namespace pipewright
