#include "tests/made_up_calls.h"

#include <ATen/ATen.h>
#include <ATen/CPUGeneratorImpl.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <csignal>
#include <cstdio>
#include <stdexcept>

namespace pipewright {

using c10::IValue;
using c10::TypeKind;

bool HoldsTensors(const c10::TypePtr& type) {
  if (type->kind() == TypeKind::TensorType || type->kind() == TypeKind::VarType) return true;
  for (const c10::TypePtr& inner : type->containedTypes())
    if (HoldsTensors(inner)) return true;
  return false;
}

static int64_t Gates(const std::string& name) {
  return name.starts_with("aten::lstm") ? 4 : name.starts_with("aten::gru") ? 3 : 1;
}

MadeUpArguments::MadeUpArguments(unsigned attempt) : random_(attempt) {
  at::manual_seed(attempt);  // for at::rand
  size_ = Pick({2, 2, 2, 1, 3});
  first_rank_ = static_cast<int64_t>(attempt % 6), other_rank_ = Pick({0, 1, 1, 2, 3, 4, 5});
  if (Chance(0.4)) other_rank_ = first_rank_;
  first_dtype_ = Pick({at::kFloat, at::kFloat, at::kFloat, at::kLong, at::kBool,
                       at::kComplexFloat, at::kInt, at::kHalf, at::kDouble, at::kByte,
                       at::kBFloat16});
  other_dtype_ = Chance(0.7) ? first_dtype_ : Pick({at::kFloat, at::kLong, at::kInt, at::kBool});
}

IValue MadeUpArguments::Of(const c10::FunctionSchema& schema, const c10::Argument& argument) {
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

IValue MadeUpArguments::Of(const c10::Argument& argument, const c10::TypePtr& type) {
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
      if (name == "input_dtype") return int64_t{6};
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

at::Tensor MadeUpArguments::Tensor(const std::string& name) {
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

IValue MadeUpArguments::List(const c10::Argument& argument, const c10::TypePtr& element) {
  const size_t rank = static_cast<size_t>(first_rank_);
  size_t length = argument.N() ? static_cast<size_t>(*argument.N()) : Pick<size_t>({1, 1, 2, 3});
  const bool integers =
      element->kind() == TypeKind::IntType || element->kind() == TypeKind::SymIntType;
  c10::impl::GenericList list(element->kind() == TypeKind::SymIntType ? c10::IntType::get()
                                                                      : element);
  const std::string& name = argument.name();
  const bool ones = name == "stride" || name == "dilation";
  if (!argument.N() && (ones || name.ends_with("padding"))) {  // an argument of convolutions
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

IValue MadeUpArguments::Text(const std::string& name) {
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

// Returns the weights of one recurrent layer without biases.
IValue MadeUpArguments::Weights(const std::string& name) {
  c10::List<at::Tensor> weights;
  for (int i = 0; i < 2; ++i) weights.push_back(at::rand({Gates(name) * size_, size_}));
  return weights;
}

namespace {

// Runs in a child process, from attempt `*next` on. Both processes see writes to `*next`.
std::string LinesApart(unsigned attempts, volatile unsigned* next,
                       const std::function<bool(unsigned attempt, const Tell&)>& code) {
  int ends[2];
  if (pipe(ends) != 0) throw std::runtime_error("cannot make a pipe");
  std::fflush(nullptr);
  const pid_t child = fork();
  if (child < 0) throw std::runtime_error("cannot fork");
  if (child == 0) {
    const rlimit seconds{10, 20};  // limits of processor time: the machine may be busy
    setrlimit(RLIMIT_CPU, &seconds);
    alarm(600);
    if (!std::freopen("/dev/null", "w", stderr)) _exit(1);
    std::set<std::string> told;
    const Tell tell = [&](const std::string& line) {
      if (told.insert(line).second && write(ends[1], (line + "\n").c_str(), line.size() + 1) < 0)
        _exit(1);
    };
    while (*next < attempts) {
      const unsigned attempt = *next;
      *next = attempt + 1;
      try {
        if (!code(attempt, tell)) *next = attempts;
      } catch (...) {
      }
    }
    _exit(0);
  }
  close(ends[1]);
  std::string text;
  char buffer[4096];
  for (ssize_t n; (n = read(ends[0], buffer, sizeof buffer)) > 0;)
    text.append(buffer, static_cast<size_t>(n));
  close(ends[0]);
  int status = 0;
  waitpid(child, &status, 0);
  if (WIFSIGNALED(status) && (WTERMSIG(status) == SIGXCPU || WTERMSIG(status) == SIGALRM))
    *next = attempts;
  return text;
}

}  // namespace

std::set<std::string> RunApart(unsigned attempts,
                               const std::function<bool(unsigned attempt, const Tell&)>& code) {
  auto* next = static_cast<volatile unsigned*>(mmap(
      nullptr, sizeof(unsigned), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0));
  if (next == MAP_FAILED) throw std::runtime_error("cannot map memory");
  std::string text;
  for (int processes = 0; processes < 50 && *next < attempts; ++processes)
    text += LinesApart(attempts, next, code);
  munmap(const_cast<unsigned*>(next), sizeof(unsigned));
  std::set<std::string> lines;
  for (size_t at = 0, end; (end = text.find('\n', at)) != std::string::npos; at = end + 1)
    lines.insert(text.substr(at, end - at));
  return lines;
}

}  // namespace pipewright
