#include "runtime/cpu/matmul.h"

#include <ATen/ATen.h>
#include <ATen/Context.h>
#include <ATen/record_function.h>
#include <gtest/gtest.h>

#include <fstream>
#include <functional>
#include <iterator>
#include <memory>
#include <string>
#include <vector>

#include "base/error.h"

namespace pipewright {

static bool HasOneDnn() {
  try {
    UseMatMul(MatMul::kOneDnn, "test");
  } catch (const Error&) {
    return false;
  }
  UseMatMul(MatMul::kLibTorch, "test");
  return true;
}

static int CallsOfOneDnn(const std::function<void()>& code) {
  static thread_local int calls = 0;
  calls = 0;
  const auto handle = at::addThreadLocalCallback(at::RecordFunctionCallback(
      [](const at::RecordFunction& f) -> std::unique_ptr<at::ObserverContext> {
        if (std::string(f.name()) == "mkldnn::_linear_pointwise") ++calls;
        return nullptr;
      }));
  code();
  at::removeCallback(handle);
  return calls;
}

// Checks that `code` computes close values with both. Returns how often oneDNN was called.
static int Compare(const std::function<std::vector<at::Tensor>()>& code) {
  std::vector<at::Tensor> plain, ours, again;
  UseMatMul(MatMul::kLibTorch, "test");
  EXPECT_EQ(CallsOfOneDnn([&] { plain = code(); }), 0);
  UseMatMul(MatMul::kOneDnn, "test");
  const int calls = CallsOfOneDnn([&] { ours = code(); });
  again = code();
  UseMatMul(MatMul::kLibTorch, "test");
  EXPECT_EQ(plain.size(), ours.size());
  for (size_t i = 0; i < plain.size(); ++i) {
    EXPECT_EQ(plain[i].sizes(), ours[i].sizes());
    EXPECT_TRUE(at::allclose(plain[i], ours[i], 1e-4, 1e-3)) << i;
    EXPECT_TRUE(at::equal(ours[i], again[i])) << i;
  }
  return calls;
}

struct Product {
  std::vector<int64_t> input, weight;
  bool onednn = false;
  at::ScalarType type = at::kFloat;
  bool as_linear = true;  // layout of the weight
};

TEST(MatMul, GivesWhatLibTorchGives) {
  if (!HasOneDnn()) GTEST_SKIP() << "LibTorch without oneDNN";
  at::NoGradGuard guard;
  for (const Product& p : std::vector<Product>{{{32, 1024}, {1024, 1024}, true},
                                               {{1, 1024}, {1030, 1024}, true},
                                               {{4, 3, 2, 1024}, {1030, 1024}, true},
                                               {{256, 600}, {600, 600}, true},
                                               {{32, 1024}, {1024, 1024}, true, at::kFloat, false},
                                               {{2, 1024}, {1024, 1024}, false, at::kFloat, false},
                                               {{32, 1024}, {1023, 1024}, false},
                                               {{32, 1024}, {1024, 1024}, false, at::kDouble},
                                               {{0, 1024}, {1024, 1024}, false}}) {
    at::manual_seed(1);
    const at::Tensor x = at::randn(p.input, p.type), b = at::randn({p.weight[0]}, p.type);
    at::Tensor w = at::randn(p.weight, p.type);
    if (!p.as_linear) w = w.t().contiguous().t();
    EXPECT_EQ(Compare([&]() -> std::vector<at::Tensor> {
                return {at::linear(x, w, b), at::linear(x, w), at::matmul(x, w.t())};
              }),
              p.onednn ? 3 : 0)
        << x.sizes() << w.sizes();
    if (x.dim() != 2) continue;
    const at::Tensor row = at::randn({1, p.weight[0]}, p.type), t = w.t();
    EXPECT_EQ(Compare([&]() -> std::vector<at::Tensor> {
                return {at::addmm(row, x, t), at::addmm(b, x, t, 2), at::addmm(b, x, t, 1, 3)};
              }),
              0);
  }
}

TEST(MatMul, TakesOperandsAsTheyLie) {
  if (!HasOneDnn()) GTEST_SKIP() << "LibTorch without oneDNN";
  at::NoGradGuard guard;
  at::manual_seed(1);
  const at::Tensor x = at::randn({32, 1024}), w = at::randn({1024, 1024}), b = at::randn({2048});
  auto linear = [](const at::Tensor& x, const at::Tensor& w, const at::Tensor& bias) {
    return Compare([&]() -> std::vector<at::Tensor> { return {at::linear(x, w, bias)}; });
  };
  EXPECT_EQ(linear(x, w, b.slice(0, 3, 1027)), 1);
  EXPECT_EQ(linear(x, w, b.slice(0, 0, 2048, 2)), 0);
  EXPECT_EQ(linear(x, w, b.slice(0, 0, 1).expand({1024})), 0);
  EXPECT_EQ(linear(x.slice(0, 0, 1).expand({32, 1024}), w, b.slice(0, 0, 1024)), 0);
  EXPECT_EQ(linear(at::randn({1024, 32}).t(), w, b.slice(0, 0, 1024)), 0);
  EXPECT_EQ(linear(x, at::randn({2048, 1024}).slice(0, 0, 2048, 2), b.slice(0, 0, 1024)), 0);
  // Few columns, or a sum over few.
  auto product = [](const at::Tensor& a, const at::Tensor& b) {
    return Compare([&]() -> std::vector<at::Tensor> { return {at::mm(a, b)}; });
  };
  EXPECT_EQ(product(at::randn({65536, 512}), at::randn({512, 4})), 0);
  EXPECT_EQ(product(at::randn({4096, 8}), at::randn({8, 4096})), 0);
  EXPECT_EQ(product(at::randn({4096, 512}), at::randn({512, 64})), 1);
}

TEST(MatMul, AutoIsOneDnnOnProcessorsOfAmd) {
  if (!HasOneDnn()) GTEST_SKIP() << "LibTorch without oneDNN";
  std::ifstream file("/proc/cpuinfo");
  const std::string text(std::istreambuf_iterator<char>(file), {});
  const bool amd = text.find("AuthenticAMD") != std::string::npos;
  const at::Tensor x = at::randn({32, 1024}), w = at::randn({1024, 1024});
  UseMatMul(MatMul::kAuto, "test");
  EXPECT_EQ(CallsOfOneDnn([&] { at::linear(x, w); }), amd && at::hasMKL() ? 1 : 0);
  UseMatMul(MatMul::kLibTorch, "test");
}

TEST(MatMul, GivesGradients) {
  if (!HasOneDnn()) GTEST_SKIP() << "LibTorch without oneDNN";
  at::manual_seed(1);
  const at::Tensor x = at::randn({128, 768}).set_requires_grad(true),
                   w = at::randn({1024, 768}).set_requires_grad(true),
                   b = at::randn({1024}).set_requires_grad(true), g = at::randn({128, 1024});
  EXPECT_EQ(Compare([&]() -> std::vector<at::Tensor> {
              for (const at::Tensor& t : {x, w, b}) t.mutable_grad().reset();
              at::linear(x, w, b).backward(g);
              return {x.grad().clone(), w.grad().clone(), b.grad().clone()};
            }),
            2);  // the input's; for that of the weight, the output's would have to be copied
}

TEST(MatMul, SaysWhatLibTorchSaysOfWrongSizes) {
  if (!HasOneDnn()) GTEST_SKIP() << "LibTorch without oneDNN";
  auto said = [](MatMul choice) -> std::string {
    UseMatMul(choice, "test");
    try {
      at::linear(at::ones({32, 1000}), at::ones({1024, 1024}), at::ones({1024}));
    } catch (const c10::Error& e) {
      return e.what_without_backtrace();
    }
    return "";
  };
  const std::string wanted = said(MatMul::kLibTorch);
  EXPECT_NE(wanted, "");
  EXPECT_EQ(said(MatMul::kOneDnn), wanted);
  UseMatMul(MatMul::kLibTorch, "test");
  EXPECT_THROW(at::addmm(at::ones({7}), at::ones({32, 1024}), at::ones({1024, 1024})), c10::Error);
}

}  // namespace pipewright
