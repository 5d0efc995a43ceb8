// Every operator of LibTorch is called, with arguments made up by the types of its schema, to see
// what it returns and writes to: passes/aliases.cc must know it.
#include "passes/aliases.h"

#include <ATen/Parallel.h>
#include <gtest/gtest.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <torch/csrc/jit/runtime/operator.h>
#include <torch/torch.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <functional>
#include <random>
#include <set>

#include "passes/random_ops.h"

namespace pipewright {
namespace {

using c10::IValue;
using c10::TypeKind;

bool HoldsTensors(const c10::TypePtr& type) {
  if (type->kind() == TypeKind::TensorType || type->kind() == TypeKind::VarType) return true;
  for (const c10::TypePtr& inner : type->containedTypes())
    if (HoldsTensors(inner)) return true;
  return false;
}

// Arguments for one call. All sizes are the same, so that ranks alone decide what fits.
class Arguments {
 public:
  explicit Arguments(unsigned attempt) : random_(attempt) {
    size_ = Pick({2, 2, 2, 1, 3});
    first_rank_ = static_cast<int64_t>(attempt % 6), other_rank_ = Pick({0, 1, 1, 2, 3, 4, 5});
    if (Chance(0.4)) other_rank_ = first_rank_;
    first_dtype_ = Pick({at::kFloat, at::kFloat, at::kFloat, at::kLong, at::kBool,
                         at::kComplexFloat, at::kInt, at::kHalf, at::kDouble, at::kByte,
                         at::kBFloat16});
    other_dtype_ = Chance(0.7) ? first_dtype_ : Pick({at::kFloat, at::kLong, at::kInt, at::kBool});
  }

  // Throws where no value of that type can be made.
  IValue Of(const c10::FunctionSchema& schema, const c10::Argument& argument) {
    if (argument.default_value() && Chance(0.7)) return *argument.default_value();
    if (argument.name() == "params") return Weights(schema.name());
    if (schema.name() == "aten::lstm" && argument.name() == "hx")
      return c10::List<at::Tensor>({at::rand({1, size_, size_}), at::rand({1, size_, size_})});
    if (schema.name() == "aten::lstm_cell" && argument.name() == "hx")
      return c10::List<at::Tensor>({at::rand({size_, size_}), at::rand({size_, size_})});
    if (argument.name() == "w_ih" || argument.name() == "w_hh")
      return at::rand({Gates(schema.name()) * size_, size_});
    return Of(argument, argument.type());
  }

 private:
  bool Chance(double p) { return std::uniform_real_distribution<>(0, 1)(random_) < p; }
  template <class T>
  T Pick(std::initializer_list<T> from) {
    return from.begin()[std::uniform_int_distribution<size_t>(0, from.size() - 1)(random_)];
  }

  IValue Of(const c10::Argument& argument, const c10::TypePtr& type) {
    const std::string& name = argument.name();
    switch (type->kind()) {
      case TypeKind::OptionalType:
        return Chance(0.4) ? IValue() : Of(argument, type->containedTypes()[0]);
      case TypeKind::TensorType:
      case TypeKind::VarType:
      case TypeKind::AnyType:
        return Tensor(name);
      case TypeKind::ListType:
        return List(argument, type->containedTypes()[0]);
      case TypeKind::TupleType: {
        std::vector<IValue> parts;
        for (const c10::TypePtr& part : type->containedTypes()) parts.push_back(Of(argument, part));
        return c10::ivalue::Tuple::create(parts);
      }
      case TypeKind::SymIntType:
      case TypeKind::IntType:
        if (name == "dtype") return Pick<int64_t>({6, 6, 4, 7, 0});
        if (name == "layout" || name == "memory_format") return int64_t{0};
        if (name == "groups") return int64_t{1};
        return Pick<int64_t>({0, 0, 1, 1, 2, -1, size_});
      case TypeKind::FloatType:
        return Pick({1.0, 0.5, 0.0});
      case TypeKind::NumberType:
        return Chance(0.5) ? IValue(Pick<int64_t>({1, 2, 0})) : IValue(Pick({1.0, 0.5}));
      case TypeKind::BoolType:
        return Chance(0.5);
      case TypeKind::StringType:
        return Text(name);
      case TypeKind::DeviceObjType:
        return c10::Device(c10::kCPU);
      case TypeKind::GeneratorType:
        return at::detail::createCPUGenerator();
      default:
        throw std::invalid_argument(type->str());
    }
  }

  at::Tensor Tensor(const std::string& name) {
    const bool index = name.find("ind") != std::string::npos || name.find("target") == 0 ||
                       name.find("length") != std::string::npos || name.find("offset") == 0;
    const int64_t rank = tensors_ == 0   ? first_rank_
                         : Chance(0.85) ? other_rank_
                                        : Pick<int64_t>({0, 1, 2, 3, 4, 5});
    at::ScalarType dtype = tensors_++ == 0 ? first_dtype_ : other_dtype_;
    if (index && Chance(0.7)) dtype = at::kLong;
    std::vector<int64_t> sizes(static_cast<size_t>(rank), size_);
    if (Chance(0.1)) sizes.insert(sizes.begin(), 1);
    at::Tensor tensor = at::rand(sizes).add_(0.1);
    if (!c10::isFloatingType(dtype) && !c10::isComplexType(dtype)) tensor = tensor.round_();
    tensor = tensor.to(dtype);
    return Chance(0.1) && rank > 1 ? tensor.transpose(0, 1) : tensor;
  }

  IValue List(const c10::Argument& argument, const c10::TypePtr& element) {
    const size_t rank = static_cast<size_t>(first_rank_);
    size_t length = argument.N() ? static_cast<size_t>(*argument.N()) : Pick<size_t>({1, 1, 2, 3});
    const bool integers =
        element->kind() == TypeKind::IntType || element->kind() == TypeKind::SymIntType;
    c10::impl::GenericList list(element->kind() == TypeKind::SymIntType ? c10::IntType::get()
                                                                        : element);
    const std::string& name = argument.name();
    const bool ones = name == "stride" || name == "dilation";
    if (!argument.N() && (ones || name.ends_with("padding"))) {  // of convolutions
      length = rank > 2 ? rank - 2 : 1;
      for (size_t i = 0; i < length; ++i)
        list.push_back(static_cast<int64_t>(ones));
      return list;
    }
    if (integers && !argument.N()) {
      length = Pick<size_t>({0, 1, rank, rank, rank > 2 ? rank - 2 : 1});
      if (Chance(0.3)) {  // dimensions in order, or backwards
        const bool backwards = Chance(0.5);
        for (size_t i = 0; i < rank; ++i)
          list.push_back(static_cast<int64_t>(backwards ? rank - 1 - i : i));
        return list;
      }
    }
    const bool same = integers && Chance(0.8);
    const IValue value = same ? IValue(Pick<int64_t>({0, 1, size_, size_})) : IValue();
    for (size_t i = 0; i < length; ++i) {
      if (HoldsTensors(element) && i > 0) tensors_ = Chance(0.8) ? 0 : 1;
      list.push_back(same ? value : Of(argument, element));
    }
    return list;
  }

  IValue Text(const std::string& name) {
    if (name == "equation")
      return Pick<const char*>({"ij->ji", "i->i", "ii->i", "ij,jk->ik", "i", "ij", "ijk->kji",
                                "...->...", "i,j->ij", "ij,ij->ij", "i,i->i"});
    if (name == "mode")
      return Pick<const char*>({"constant", "reflect", "replicate", "circular", "bilinear",
                                "reduced", "complete", "sum", "mean"});
    if (name == "reduce" || name == "reduction")
      return Pick<const char*>({"sum", "mean", "amax", "prod", "max", "add", "multiply"});
    if (name == "indexing") return Pick<const char*>({"ij", "xy"});
    if (name == "rounding_mode") return Pick<const char*>({"trunc", "floor"});
    if (name == "padding") return Pick<const char*>({"same", "valid"});
    if (name == "ord") return Pick<const char*>({"fro", "nuc"});
    return Pick<const char*>({"none", "tanh", "linear", "left", "right", "L", "U"});
  }

  // Of one layer without biases of a recurrent network.
  IValue Weights(const std::string& name) {
    c10::List<at::Tensor> weights;
    for (int i = 0; i < 2; ++i) weights.push_back(at::rand({Gates(name) * size_, size_}));
    return weights;
  }
  static int64_t Gates(const std::string& name) {
    return name.starts_with("aten::lstm") ? 4 : name.starts_with("aten::gru") ? 3 : 1;
  }

  std::mt19937 random_;
  int64_t size_, first_rank_, other_rank_;
  at::ScalarType first_dtype_, other_dtype_;
  int tensors_ = 0;  // made so far
};

struct Item {
  at::Tensor tensor;
  size_t several;  // elements of the list around it, or 1
};

void Collect(const IValue& value, std::vector<Item>& items, size_t several = 1) {
  if (value.isTensor() && value.toTensor().defined())
    items.push_back({value.toTensor(), several});
  else if (value.isList())
    for (const IValue& inner : value.toListRef())
      Collect(inner, items, value.toListRef().size());
  else if (value.isTuple())
    for (const IValue& inner : value.toTupleRef().elements()) Collect(inner, items, several);
}

const void* MemoryOf(const at::Tensor& tensor) {
  return tensor.has_storage() && tensor.storage().nbytes() > 0 ? tensor.storage().data() : nullptr;
}

// One line for each thing seen: "called", "alias INPUT OUTPUT ITEMS", "outputs A B",
// "writes INPUT".
void Try(const torch::jit::Operator& op, const std::function<void(const std::string&)>& tell) {
  const c10::FunctionSchema& schema = op.schema();
  int called = 0;
  for (unsigned attempt = 0; attempt < 1200 && called < 50; ++attempt) {
    torch::jit::Stack stack;
    std::vector<std::vector<Item>> given;
    std::vector<std::vector<at::Tensor>> before;
    try {
      Arguments arguments(attempt);
      for (const c10::Argument& argument : schema.arguments())
        stack.push_back(arguments.Of(schema, argument));
    } catch (const std::invalid_argument&) {
      return;  // a type that nothing here makes
    }
    for (const IValue& value : stack) {
      Collect(value, given.emplace_back());
      auto& copies = before.emplace_back();
      for (const Item& item : given.back()) copies.push_back(item.tensor.clone());
    }
    try {
      op.getOperation()(stack);
    } catch (const std::exception&) {
      continue;
    }
    if (called++ == 0) tell("called");
    std::vector<std::set<const void*>> returned;
    std::set<const void*> ours;
    for (size_t i = 0; i < given.size(); ++i)
      for (size_t k = 0; k < given[i].size(); ++k) {
        const at::Tensor& tensor = given[i][k].tensor;
        ours.insert(MemoryOf(tensor));
        if (tensor.sizes() == before[i][k].sizes() &&
            !at::allclose(tensor, before[i][k], 0, 0, /*equal_nan=*/true))
          tell("writes " + std::to_string(i));
      }
    for (size_t o = 0; o < stack.size(); ++o) {
      std::vector<Item> results;
      Collect(stack[o], results);
      std::set<const void*>& memory = returned.emplace_back();
      for (const Item& result : results)
        if (const void* at = MemoryOf(result.tensor)) memory.insert(at);
      for (size_t i = 0; i < given.size(); ++i)
        for (const Item& item : given[i])
          if (memory.count(MemoryOf(item.tensor)))
            tell("alias " + std::to_string(i) + " " + std::to_string(o) + " " +
                 std::to_string(item.several));
      for (size_t other = 0; other < o; ++other)
        for (const void* at : returned[other])
          if (memory.count(at) && !ours.count(at))
            tell("outputs " + std::to_string(other) + " " + std::to_string(o));
    }
  }
}

// Calls with made-up arguments may crash: each operator is tried in a process of its own.
std::set<std::string> TryApart(const torch::jit::Operator& op) {
  int ends[2];
  if (pipe(ends) != 0) return {};
  std::fflush(nullptr);
  const pid_t child = fork();
  if (child == 0) {
    const rlimit seconds{20, 20};  // of the processor: the machine may be busy
    setrlimit(RLIMIT_CPU, &seconds);
    alarm(600);
    if (!std::freopen("/dev/null", "w", stderr)) _exit(1);
    std::set<std::string> told;
    try {
      Try(op, [&](const std::string& line) {
        if (told.insert(line).second && write(ends[1], (line + "\n").c_str(), line.size() + 1) < 0)
          _exit(1);
      });
    } catch (...) {
    }
    _exit(0);
  }
  close(ends[1]);
  std::string text;
  char buffer[4096];
  for (ssize_t n; (n = read(ends[0], buffer, sizeof buffer)) > 0;)
    text.append(buffer, static_cast<size_t>(n));
  close(ends[0]);
  waitpid(child, nullptr, 0);
  std::set<std::string> lines;
  for (size_t at = 0, end; (end = text.find('\n', at)) != std::string::npos; at = end + 1)
    lines.insert(text.substr(at, end - at));
  return lines;
}

bool WritesWhatItIsTold(const c10::FunctionSchema& schema) {
  for (const c10::Argument& argument : schema.arguments())
    if (argument.alias_info() && argument.alias_info()->isWrite()) return true;
  return false;
}

// Those that passes/statistics.h knows.
bool Norm(const c10::FunctionSchema& schema) {
  return schema.name() == "aten::batch_norm" || schema.name() == "aten::instance_norm";
}

TEST(Aliases, AreKnownOfEveryOperator) {
  CurrentRandomKey();  // registers ours
  at::set_num_threads(1);
  int called = 0, never = 0;
  for (const auto& op : torch::jit::getAllOperators()) {
    const c10::FunctionSchema& schema = op->schema();
    const bool ours = schema.name().starts_with("pipewright::");
    if ((!schema.name().starts_with("aten::") && !ours) || WritesWhatItIsTold(schema)) continue;
    std::vector<std::pair<size_t, size_t>> pairs;  // that might share memory
    for (size_t i = 0; i < schema.arguments().size(); ++i)
      for (size_t o = 0; o < schema.returns().size(); ++o)
        if (HoldsTensors(schema.arguments()[i].type()) && HoldsTensors(schema.returns()[o].type()))
          pairs.emplace_back(i, o);
    if (pairs.empty()) continue;
    const bool listed = std::all_of(pairs.begin(), pairs.end(), [&](const auto& pair) {
      return AliasOf(schema, pair.first, pair.second) != Alias::kNone;
    });
    if (listed && AliasOf(schema, pairs[0].first, pairs[0].second) == Alias::kUnknown) {
      ++never;
      continue;
    }
    // What is not filled in differs from call to call, and may end the process.
    std::set<std::string> seen;
    for (int trial = 0; trial < 4 && !seen.count("called"); ++trial) seen = TryApart(*op);
    for (const std::string& line : seen) {
      size_t i = 0, o = 0, items = 1;
      if (std::sscanf(line.c_str(), "alias %zu %zu %zu", &i, &o, &items) == 3)
        EXPECT_EQ(AliasOf(schema, i, o, items), Alias::kKnown)
            << schema << "\nreturns memory of argument " << i << " in result " << o
            << (items > 1 ? ", of several in a list" : "");
      else if (std::sscanf(line.c_str(), "writes %zu", &i) == 1)
        EXPECT_TRUE(WritesTo(schema, i) || Norm(schema)) << schema << "\n" << line;
      else if (line != "called")
        ADD_FAILURE() << schema << "\n" << line;
    }
    called += static_cast<int>(seen.count("called"));
    EXPECT_TRUE(seen.count("called") || listed)
        << schema << "\ncould not be called: it belongs among those of which nobody knows";
  }
  std::printf("%d operators called, %d never\n", called, never);
  EXPECT_GT(called, 4 * never);
}

}  // namespace
}  // namespace pipewright
