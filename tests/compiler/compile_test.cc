// Compiles small models to packages, and compares manifests, notes and errors.
#include "compiler/compile.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <new>
#include <stdexcept>

#include "base/files/read_file.h"
#include "formats/profile/profile.h"
#include "formats/weights/safetensors.h"
#include "tests/error_text.h"
#include "tests/passes/model_text.h"
#include "tests/temp_folder.h"

namespace pipewright {
namespace {

using Notes = std::vector<std::string>;

constexpr char kCut[] = R"IR(
  %y : Tensor = aten::mm(%x, %a)
  pipewright::pipe_split()
  %z : Tensor = aten::mm(%y, %b)
  return (%z)
)IR";

// A model of two weights of [3, 3] and an input of [s0, 3]; the values of `sized` are that large.
Model Small(const std::string& body = kCut, const Notes& sized = {"x", "y", "z"}) {
  Weight a = Parameter("a"), b = Parameter("b");
  for (Weight* weight : {&a, &b}) weight->shape = {3, 3}, weight->strides = {3, 1};
  a.data = at::arange(9, at::kFloat).view({3, 3}), b.data = at::ones({3, 3});
  Model model = ParseModel(
      "graph(%a : Tensor, %b : Tensor, %training : bool, %device : Device, %x : Tensor):" + body,
      {a, b});
  model.symbols["s0"] = {2, 8};
  for (const std::string& value : sized) model.meta[value] = {at::kFloat, false, {"s0", "3"}, ""};
  return model;
}

CompileOptions To(const std::string& name, const std::string& split = "markers") {
  CompileOptions options;
  options.output = TempPath(name);
  options.passes.split = ParseSplit(split);
  return options;
}

Notes NotesOf(Model model, const CompileOptions& options) { return Compile(model, options).notes; }
Notes NotesOf(Model model) { return NotesOf(std::move(model), To("notes.pkg")); }

std::string CompileError(Model model, const CompileOptions& options) {
  return ErrorOf([&] { Compile(model, options); });
}

std::string Bytes(const at::Tensor& tensor) {
  return std::string(static_cast<const char*>(tensor.data_ptr()), tensor.nbytes());
}

std::string StoredBytes(const CompileOptions& options, int module, const std::string& name) {
  const SafetensorsFile file(options.output + "/weights/module" + std::to_string(module) +
                             ".safetensors");
  const TensorInfo& info = file.At(name);
  std::string bytes(info.end - info.begin, '\0');
  file.Read(info, 0, bytes.data(), bytes.size());
  return bytes;
}

TEST(Compile, WritesThePackageThatItDescribes) {
  const CompileOptions options = To("whole.pkg");
  Model model = Small();
  const Compiled compiled = Compile(model, options);
  EXPECT_EQ(compiled.notes, Notes{});
  EXPECT_EQ(compiled.assigned, (std::vector<int>{0, 1}));
  EXPECT_EQ(WriteManifest(ReadManifest(options.output)), WriteManifest(compiled.manifest));
  ASSERT_EQ(compiled.manifest.modules.size(), 2u);
  EXPECT_NE(compiled.explanation.find("module1, cut "), std::string::npos);
  EXPECT_EQ(ReadConf(options.output + "/conf/mp_conf.json").stage_to_ranks,
            (std::vector<std::vector<int>>{{0}, {1}}));
  EXPECT_EQ(StoredBytes(options, 0, "a"), Bytes(at::arange(9, at::kFloat)));
  EXPECT_EQ(StoredBytes(options, 1, "b"), Bytes(at::ones({3, 3})));
}

TEST(Compile, TakesAndCastsWeights) {
  CompileOptions options = To("taken.pkg");
  options.weights = TempPath("checkpoint.safetensors");
  options.dtype = "bfloat16";
  const at::Tensor a = at::full({3, 3}, 0.5), b = at::full({3, 3}, -2.);
  const std::string first = Bytes(a), second = Bytes(b);
  WriteSafetensors(options.weights, {{"a", "F32", {3, 3}, first}, {"b", "F32", {3, 3}, second}});
  Model model = Small();
  const Compiled compiled = Compile(model, options);
  EXPECT_EQ(compiled.manifest.modules[0].held[0].dtype, "bfloat16");
  EXPECT_EQ(StoredBytes(options, 0, "a"), Bytes(a.to(at::kBFloat16)));
  EXPECT_EQ(StoredBytes(options, 1, "b"), Bytes(b.to(at::kBFloat16)));
  Model without = Small();
  without.weights[1].data.reset(), without.weights[1].absent = true;
  EXPECT_EQ(
      CompileError(without, To("absent.pkg")).find("test.pt2: was exported without weights: "), 0u);
  EXPECT_FALSE(std::filesystem::exists(TempPath("absent.pkg")));
}

TEST(Compile, GroupsModulesIntoRanks) {
  CompileOptions options = To("ranks.pkg");
  options.ranks = 1;
  Model model = Small();
  Compile(model, options);
  const Conf conf = ReadConf(options.output + "/conf/mp_conf.json");
  EXPECT_EQ(conf.module_to_stage, (std::vector<int>{0, 0}));
  EXPECT_EQ(conf.stage_to_ranks, (std::vector<std::vector<int>>{{0}}));

  options = To("more.pkg");
  options.ranks = 3;
  EXPECT_EQ(CompileError(Small(), options),
            "test.pt2: 2 modules cannot be grouped into 3 stages, one per rank\n  cut it into "
            "more: --split equal:3; or --ranks 2");
  const std::string plain = R"IR(
  %y : Tensor = aten::mm(%x, %a)
  %z : Tensor = aten::mm(%y, %b)
  return (%z)
)IR";
  const std::string start =
      "test.pt2: 1 module cannot be grouped into 3 stages, one per rank: nothing says where to cut "
      "the model\n  cut it into more: --split equal:3, --split modules:NAME,... (before these "
      "submodules), or ";
  EXPECT_EQ(CompileError(Small(plain), options),
            start + "pipe_split() between layers of the model; or --ranks 1");
  Model dropped = Small(plain);
  dropped.markers_dropped = true;
  EXPECT_EQ(CompileError(dropped, options), start +
                                                "markers that torch.jit keeps "
                                                "(examples/torchscript/markers.py); or --ranks 1");
  options.passes.split = ParseSplit("equal:1");
  EXPECT_EQ(CompileError(Small(plain), options),
            "test.pt2: 1 module cannot be grouped into 3 stages, one per rank\n  cut it into "
            "more: --split equal:3; or --ranks 1");
  EXPECT_FALSE(std::filesystem::exists(options.output));
}

TEST(Compile, NotesModelsOfOneModuleAndOfEvaluation) {
  const std::string plain = "\n  %z : Tensor = aten::mm(%x, %a)\n  return (%z)\n";
  const std::string none =
      "the model has no markers and is one module; call torch.distributed.pipelining.pipe_split() "
      "between layers, or pass --split equal:N or --split modules:NAME,...";
  EXPECT_EQ(NotesOf(Small(plain)), Notes{none});
  EXPECT_EQ(NotesOf(Small(plain), To("notes.pkg", "equal:1")), Notes{});  // as asked
  Model model = Small(R"IR(
  %p : float = prim::Constant[value=0.5]()
  %off : bool = prim::Constant[value=0]()
  %y : Tensor = aten::mm(%x, %a)
  %z : Tensor = aten::dropout(%y, %p, %off)
  return (%z)
)IR");
  model.markers_dropped = true;
  EXPECT_EQ(NotesOf(model),
            (Notes{"torch.jit drops pipe_split() when it writes a file, so the model is one "
                   "module; call the one of examples/torchscript/markers.py, export with "
                   "torch.export, or pass --split equal:N or --split modules:NAME,...",
                   "the model was exported in evaluation mode: dropout and batch norm stay as in "
                   "evaluation when it is trained; call model.train() before exporting"}));
}

TEST(Compile, NotesSizesThatDependOnTheData) {
  Model model = Small();
  model.meta["y"].shape = {"u0", "3"};
  model.meta["z"].shape = {"u0", "3"};  // which no module takes
  EXPECT_EQ(NotesOf(model),
            Notes{"the sizes [u0, 3] of value \"y\" depend on the data, so that it cannot be sent: "
                  "modules 0, 1 run on one rank only; or cut elsewhere"});
}

TEST(Compile, NotesConditionsThatRunsDoNotCheck) {
  Model model = Small();
  model.symbols["s1"] = {2, 8};
  model.guards = {"(s0 % 2) == 0", "(s1 % 2) == 0"};  // no input has s1
  model.unknown_guards = {"f(s0) == 1"};
  auto note = [](const std::string& guard) {
    return "the export holds only for " + guard +
           ", which runs do not check: keep to sizes like those of the example";
  };
  EXPECT_EQ(NotesOf(model), (Notes{note("f(s0) == 1"), note("(s1 % 2) == 0")}));
}

TEST(Compile, NotesOperationsWithoutADerivative) {
  auto notes = [](const std::string& line) {
    return NotesOf(Small("\n  %y : Tensor = aten::mm(%x, %a)\n" + line + "  return (%z, %y)\n"),
                   To("notes.pkg", "equal:1"));
  };
  const std::string of_y = "  %z : Tensor = aten::dequantize(%y)\n",
                    of_x = "  %z : Tensor = aten::dequantize(%x)\n";
  const Notes found = notes(of_y);
  ASSERT_EQ(found.size(), 1u);
  EXPECT_EQ(found[0].find("aten::dequantize, "), 0u) << found[0];
  EXPECT_TRUE(found[0].ends_with(
      ": PyTorch has no derivative of it: training fails if its loss depends on the result. Write "
      "that line with other operations, or detach what it is given"))
      << found[0];
  EXPECT_EQ(notes(of_x), Notes{});  // no parameter is behind it
}

TEST(Compile, NotesThatTheProfileIsOfOtherModules) {
  const CompileOptions options = To("profiled.pkg");
  NotesOf(Small(), options);
  Profile profile;
  WriteFile(options.output + "/profile.json", WriteProfile(profile));
  CompileOptions whole = To("profiled.pkg", "equal:1");
  EXPECT_EQ(NotesOf(Small(), whole),
            Notes{"the profile in " + options.output +
                  " was for other modules or sizes and was removed: `pipewright profile " +
                  options.output + "` measures the new ones"});
  EXPECT_FALSE(std::filesystem::exists(options.output + "/profile.json"));
  EXPECT_EQ(NotesOf(Small(), whole), Notes{});
}

TEST(Compile, InputsThatTheModelReturnsGetANameOfTheirOwn) {
  auto outputs = [](const std::string& body) {
    Model model = Small(body, {"x", "x_out"});
    const Manifest manifest = Compile(model, To("returned.pkg", "equal:1")).manifest;
    Notes names;
    for (int id : manifest.outputs) names.push_back(manifest.values[id].name);
    EXPECT_EQ(manifest.inputs.size(), 1u);
    return names;
  };
  EXPECT_EQ(outputs("\n  %z : Tensor = aten::mm(%x, %a)\n  return (%z, %x)\n"),
            (Notes{"z", "x_out"}));
  EXPECT_EQ(outputs("\n  %x_out : Tensor = aten::mm(%x, %a)\n  return (%x_out, %x)\n"),
            (Notes{"x_out", "x_out2"}));
}

TEST(Compile, ErrorsOfLibTorchSayWhatToDo) {
  CompileOptions options = To("broken.pkg");
  const std::string error =
      CompileError(Small("\n  %y : Tensor = aten::mm(%x, %a)\n  %z : Tensor = prim::unknown(%y)\n"
                         "  return (%z)\n"),
                   options);
  EXPECT_EQ(
      error.find("test.pt2: prim::unknown, the model itself: LibTorch cannot write it as code: "),
      0u)
      << error;
  EXPECT_TRUE(error.ends_with("\n  write that line of the model with other operations")) << error;

  options.passes.split.kind = SplitSpec::kFunction;
  auto fail = [&](const std::function<void()>& act) {
    options.passes.split.function = [act](const torch::jit::Node*) { return act(), 0; };
    Model cut = Small();
    Compile(cut, options);
  };
  EXPECT_EQ(ErrorOf([&] { fail([] { throw std::runtime_error("of LibTorch"); }); }),
            "test.pt2: aten::mm, the model itself: pass assign_modules fails: of LibTorch\n  write "
            "that line with other operations; this is a fault of pipewright: please report it with "
            "the model");
  EXPECT_EQ(ErrorOf([&] { fail([] { throw Error("ours", "is wrong"); }); }), "ours: is wrong");
  EXPECT_THROW(fail([] { throw std::bad_alloc(); }), std::bad_alloc);
  EXPECT_EQ(ErrorOf([&] {
              fail([] { throw std::runtime_error("DefaultCPUAllocator: can't allocate memory"); });
            }),
            "test.pt2: aten::mm, the model itself: there is not enough memory for this: "
            "DefaultCPUAllocator: can't allocate memory\n  compile where there is more, or write "
            "that line with smaller tensors");
  EXPECT_FALSE(std::filesystem::exists(options.output));
}

}  // namespace
}  // namespace pipewright
