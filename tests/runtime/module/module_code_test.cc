// Compiles code of modules that differs from the manifest, and compares the errors.
#include "runtime/module/module_code.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include "tests/error_text.h"
#include "tests/runtime/small_package.h"

namespace pipewright {
namespace {

std::string Changed(std::string text, const std::string& from, const std::string& to) {
  const size_t at = text.find(from);
  EXPECT_NE(at, std::string::npos) << from;
  return at == std::string::npos ? text : text.replace(at, from.size(), to);
}

// kScaleCode with other lines after the signature.
std::string Body(const std::string& lines) {
  return Changed(kScaleCode, "    scale = self.scale\n    return torch.mul(x, scale)\n", lines);
}

constexpr char kFile[] = "/modules/module0.py";

// Returns the error for this code of module 0, from the number of the line on if one is there.
std::string Refusal(const std::string& code, const Manifest& manifest = SmallManifest()) {
  const std::string package = SmallPackage("code.pkg"), file = package + kFile;
  WriteFile(file, code);
  const std::string error = ErrorOf([&] { CompileModule(package, manifest, 0); });
  return error.rfind(file, 0) == 0 ? error.substr(file.size()) : error;
}

TEST(CompileModule, KnowsTheClassAndItsLastLine) {
  const std::string package = SmallPackage("compiled.pkg");
  const CompiledText code = CompileModule(package, SmallManifest(), 0);
  ASSERT_NE(code.forward, nullptr);
  EXPECT_EQ(code.return_line, 9);
  EXPECT_TRUE(code.type->hasAttribute("scale"));
  EXPECT_FALSE(CompileModule(package, SmallManifest(), 1).type->hasAttribute("scale"));
  EXPECT_EQ(Refusal(Body("    return torch.mul(self.scale, x)\n")), "");
}

TEST(CompileModule, ArgumentsAreThoseOfTheManifest) {
  const std::string fixed =
      "\n  a module's inputs and outputs are fixed when the model is compiled";
  EXPECT_EQ(Refusal(Changed(kScaleCode, "x: Tensor", "x: Tensor, extra: Tensor")),
            ":6: forward takes (x, extra) where manifest.json says (x)" + fixed);
  EXPECT_EQ(Refusal(Changed(Body("    return self.scale\n"), ",\n    x: Tensor", "")),
            ":6: forward takes nothing where manifest.json says (x)" + fixed);
  Manifest two = SmallManifest();
  two.modules[0].inputs = {0, 1};
  EXPECT_EQ(Refusal(Changed(kScaleCode, "x: Tensor", "y: Tensor, x: Tensor"), two),
            ":6: forward takes (y, x) where manifest.json says (x, y)\n"
            "  declare the arguments in the manifest's order");
  // With other names, they count by their places.
  EXPECT_EQ(Refusal(Changed(kScaleCode, "x: Tensor", "x: Tensor, other: Tensor"), two), "");
}

TEST(CompileModule, ReturnsAreThoseOfTheManifest) {
  const std::string fixed =
      "\n  a module's inputs and outputs are fixed when the model is compiled: return ";
  auto returning = [](const std::string& type, const std::string& lines) {
    return Changed(Body(lines), "-> Tensor", "-> " + type);
  };
  const std::string pair = "Tuple[Tensor, Tensor]";
  EXPECT_EQ(Refusal(returning(pair, "    y = self.scale\n    return (x, y)\n")),
            ":9: forward returns 2 values where manifest.json says 1" + fixed + "(y)");
  Manifest two = SmallManifest();
  two.modules[0].outputs = {1, 2};
  EXPECT_EQ(Refusal(kScaleCode, two),
            ":9: forward returns 1 value where manifest.json says 2" + fixed + "(y, z)");
  const std::string values = "    y = torch.mul(x, self.scale)\n    z = torch.neg(x)\n";
  EXPECT_EQ(Refusal(returning(pair, values + "    return (z, y)\n"), two),
            ":10: forward returns (z, y) where manifest.json says (y, z)\n  return the values in "
            "the manifest's order, or rename them if this order is intended");
  EXPECT_EQ(Refusal(returning(pair, values + "    return (y, z)\n"), two), "");
  EXPECT_EQ(Refusal(returning(pair, values + "    return (y, y)\n"), two), "");  // is intended
  EXPECT_EQ(Refusal(returning("int", "    return 3\n")),
            ":8: forward returns int as y, which manifest.json says is a tensor\n"
            "  return a tensor");
  Manifest number = SmallManifest();
  for (ValueKind kind : {ValueKind::kInt, ValueKind::kFloat, ValueKind::kBool}) {
    number.values[1].kind = kind;
    const std::string name = ToText(kind);
    EXPECT_EQ(Refusal(kScaleCode, number),
              ":9: forward returns Tensor as y, which manifest.json "
              "says is a " +
                  name + "\n  return a " + name);
    EXPECT_EQ(Refusal(returning(name, "    return " + name + "(3)\n"), number), "");
  }
}

TEST(CompileModule, WeightsAreThoseOfTheManifest) {
  const std::string package = SmallPackage("declared.pkg"), file = package + kFile;
  auto error = [&](const std::string& code, const Manifest& manifest = SmallManifest()) {
    WriteFile(file, code);
    return ErrorOf([&] { CompileModule(package, manifest, 0); });
  };
  const std::string gain =
      Changed(kScaleCode, "  scale : Tensor\n", "  scale : Tensor\n  scales : Tensor\n");
  EXPECT_EQ(error(gain), file +
                             ": the class declares \"scales\", which the weight file does not "
                             "hold (did you mean \"scale\"?)");
  const float values[4] = {1, 2, 3, 4};
  const std::string_view bytes(reinterpret_cast<const char*>(values), 16);
  WriteSafetensors(package + "/weights/module0.safetensors",
                   {{"scale", "F32", {3}, bytes.substr(0, 12)}, {"scales", "F64", {2}, bytes}});
  const std::string entry =
      "weights/module0.safetensors holds \"scales\"; for it to be used and trained, add to "
      "\"held\" of module0 in manifest.json: {\"name\":\"scales\",\"kind\":\"parameter\","
      "\"dtype\":\"float64\",\"shape\":[2],\"requires_grad\":true}";
  EXPECT_EQ(error(gain), file +
                             ": the class declares \"scales\", which manifest.json does not "
                             "list\n  " +
                             entry);
  const std::string used = error(Changed(kScaleCode, "self.scale\n", "self.scales\n"));
  EXPECT_TRUE(used.ends_with("\n  " + entry)) << used;

  const std::string decided =
      "\n  the list does not decide what is trained: use \"freeze\" in the job, or "
      "\"requires_grad\" in manifest.json";
  EXPECT_EQ(error(Changed(kScaleCode, "\"scale\", ", "")),
            file + ": __parameters__ does not name \"scale\", which is a parameter" + decided);
  Manifest buffer = SmallManifest();
  buffer.modules[0].held[0].kind = WeightKind::kBuffer;
  EXPECT_EQ(error(kScaleCode, buffer),
            file + ": __parameters__ names \"scale\", which is a buffer" + decided);
}

TEST(CompileModule, UnknownWeightsAreAnsweredWithThoseOfTheModule) {
  const std::string code = Changed(kScaleCode, "self.scale\n", "self.scala\n");
  auto end = [&](const std::vector<std::string>& names) {
    Manifest manifest = SmallManifest();
    manifest.modules[0].held.clear();
    for (const std::string& name : names)
      manifest.modules[0].held.push_back(
          {name, WeightKind::kParameter, "float32", {3}, true, true});
    // A class that declares its weights itself is an old one.
    const std::string error = Refusal(Changed(code, "  scale : Tensor\n", ""), manifest);
    EXPECT_NE(error.find("module0.py\", line 7"), std::string::npos) << error;
    return error.substr(error.rfind('\n'));
  };
  EXPECT_EQ(end({}), "\n  the module has no weights");
  const std::string write = ": write getattr(self, \"NAME\")";
  EXPECT_EQ(end({"scale", "w"}),
            "\n  the module has the weights scale, w (did you mean \"scale\"?)" + write);
  std::vector<std::string> many;
  for (int i = 0; i < 8; ++i) many.push_back("w" + std::to_string(i));
  const std::string eight = "w0, w1, w2, w3, w4, w5, w6, w7";
  EXPECT_EQ(end(many), "\n  the module has the weights " + eight + write);
  many.push_back("scale");
  EXPECT_EQ(end(many), "\n  the module has the weights " + eight +
                           " and more (did you mean \"scale\"?)" + write);
}

TEST(CompileModule, EditedCodeWritesToNoParameterThatIsTrained) {
  const std::string in_place = Body("    scale = torch.mul_(self.scale, 2.0)\n    return scale\n");
  EXPECT_EQ(Refusal(in_place),
            ":8: torch.mul_ writes in place to the parameter scale, which is trained\n"
            "  use the operation that makes a new tensor");
  Manifest manifest = SmallManifest();
  manifest.modules[0].held[0].requires_grad = false;
  EXPECT_EQ(Refusal(in_place, manifest), "");
  manifest = SmallManifest();
  manifest.modules[0].code_hash = HexHash(in_place);  // as the model does it
  EXPECT_EQ(Refusal(in_place, manifest), "");

  EXPECT_EQ(Refusal(Body("    torch.clamp_(self.scale.data, 0.0, 1.0)\n"
                         "    return torch.mul(x, self.scale)\n")),
            ":8: torch.clamp_ writes through .data to the parameter scale: autograd does not see "
            "that, and the backward of one microbatch would use what the forward of a later one "
            "has written\n  constrain a buffer, or the value that is computed from the parameter");
  EXPECT_EQ(Refusal(Body("    y = torch.requires_grad_(torch.mul(x, self.scale), False)\n"
                         "    return y\n")),
            ":8: requires_grad_ changes what is trained while forward runs\n  write "
            "torch.detach(x) for a value, and name weights in the job's \"freeze\"");
  EXPECT_EQ(Refusal(Body("    self.scale = torch.mul(self.scale, 2.0)\n"
                         "    return torch.mul(x, self.scale)\n")),
            ":8: self.scale is assigned, which would detach it from the weight that is trained and "
            "saved\n  write a buffer in place: torch.copy_(self.scale, ...)");
}

TEST(CompileModule, EditedCodeLeavesInputsAndRandomNumbersAlone) {
  EXPECT_EQ(Refusal(Body("    torch.mul_(x.data, 2.0)\n    return torch.mul(x, self.scale)\n")),
            ":8: it writes into its input x, which other modules may see\n"
            "  write into a copy: torch.clone(x)");
  const std::string drawn = Refusal(Body("    return torch.mul(torch.rand_like(x), self.scale)\n"));
  EXPECT_EQ(drawn.find(":8: torch.rand_like draws different random numbers on each rank, and when "
                       "it is recomputed\n  "),
            0u)
      << drawn;
  EXPECT_EQ(Refusal(Body("    y = torch.einsum(\"ij->ij\", [x])\n    torch.mul_(y, 2.0)\n"
                         "    return torch.mul(x, self.scale)\n"))
                .find(":9: mul_ would have no effect: TorchScript drops a write where it sees no "
                      "use of what is written"),
            0u);
}

TEST(EditedCode, NamesTheFilesThatDifferWithTheirHashes) {
  const std::string package = SmallPackage("edited.pkg");
  const Manifest manifest = SmallManifest();
  EXPECT_EQ(EditedCode(package, manifest), "");
  // FNV-1a of 64 bits: its offset for no bytes, and its published value for "a".
  WriteFile(package + "/modules/module1.py", "");
  EXPECT_EQ(EditedCode(package, manifest), "modules/module1.py cbf29ce484222325");
  WriteFile(package + "/modules/module0.py", "a");
  EXPECT_EQ(EditedCode(package, manifest),
            "modules/module0.py af63dc4c8601ec8c, modules/module1.py cbf29ce484222325");
  std::filesystem::remove(package + "/modules/module0.py");
  EXPECT_NE(ErrorOf([&] { EditedCode(package, manifest); }).find("modules/module0.py"),
            std::string::npos);
}

TEST(OutputLine, IsWhereTheValueIsMadeOrReturned) {
  Manifest two = SmallManifest();
  two.modules[0].outputs = {1, 2};
  auto lines = [](const std::string& code, const Manifest& manifest) {
    const std::string package = SmallPackage("lines.pkg");
    WriteFile(package + kFile, code);
    const LoadedModule module = LoadModule(package, manifest, 0);
    std::vector<std::string> found;
    for (size_t output : {0, 1, 5})
      found.push_back(OutputLine(module, output, output == 0 ? "y" : "z", "F"));
    return found;
  };
  using Lines = std::vector<std::string>;
  const std::string values = "    y = torch.mul(x, self.scale)\n    z = torch.neg(x)\n",
                    pair = Changed(Body(values + "    u = torch.neg(z)\n    return (y, z)\n"),
                                   "-> Tensor", "-> Tuple[Tensor, Tensor]");
  EXPECT_EQ(lines(pair, two), (Lines{"F:8", "F:9", "F:9"}));  // those after the last are the last
  EXPECT_EQ(lines(Changed(pair, "(y, z)", "(y, u)"), two), (Lines{"F:8", "F:11", "F:11"}));
  EXPECT_EQ(lines(Changed(pair, "(y, z)", "(y, torch.neg(u))"), two),
            (Lines{"F:8", "F:11", "F:11"}));
  EXPECT_EQ(lines(kScaleCode, SmallManifest())[0], "F:9");
}

TEST(LineOf, IsTheFileForNodesWithoutAPlace) {
  const std::string package = SmallPackage("nodes.pkg");
  const CompiledText code = CompileModule(package, SmallManifest(), 0);
  std::vector<std::string> lines;
  for (const torch::jit::Node* node : torch::jit::toGraphFunction(*code.forward).graph()->nodes())
    if (node->kind() == c10::aten::mul) lines.push_back(LineOf(node, "F"));
  EXPECT_EQ(lines, std::vector<std::string>{"F:9"});
  torch::jit::Graph made;
  EXPECT_EQ(LineOf(made.insertNode(made.create(c10::aten::mul)), "F"), "F");
}

}  // namespace
}  // namespace pipewright
