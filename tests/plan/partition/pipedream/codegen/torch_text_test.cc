#include "plan/partition/pipedream/codegen/torch_text.h"

#include <gtest/gtest.h>

#include "base/error.h"
#include "base/text.h"

namespace pipewright {

// Returns a description of node4 in g.txt:3, from column 10 on.
static Description Described(const std::string& text) { return {text, "g.txt", "node4", 3, 10}; }

static std::string Refused(const std::string& text, const std::set<std::string>& own = {}) {
  try {
    return "written: " + DeclareModule(Described(text), own).declaration;
  } catch (const Error& error) {
    return error.what();
  }
}

TEST(TorchText, TheWholeNameTellsOperationsFromModules) {
  EXPECT_EQ(KindOf("Mul"), NodeKind::kOperation);
  EXPECT_EQ(KindOf("MultiheadAttention(8, 2)"), NodeKind::kModule);
  EXPECT_EQ(KindOf("ViewLayer()"), NodeKind::kModule);
  EXPECT_EQ(KindOf("InputNorm(3)"), NodeKind::kModule);
  EXPECT_EQ(KindOf("Input12"), NodeKind::kInput);
  EXPECT_EQ(KindOf("Add(inplace)"), NodeKind::kOperation);
  EXPECT_EQ(KindOf("hidden"), NodeKind::kHidden);
}

TEST(TorchText, DeclaresModulesFromTheirDescriptions) {
  auto declared = [](const std::string& text) {
    return DeclareModule(Described(text)).declaration;
  };
  EXPECT_EQ(declared("ReLU(inplace)"), "torch.nn.ReLU(inplace=True)");
  EXPECT_EQ(declared("LeakyReLU(negative_slope=0.01, inplace)"),
            "torch.nn.LeakyReLU(negative_slope=0.01, inplace=True)");
  EXPECT_EQ(declared("Conv2d(3, 8, kernel_size=(3, 3), padding_mode=reflect, bias=False)"),
            "torch.nn.Conv2d(3, 8, kernel_size=(3, 3), padding_mode='reflect', bias=False)");
  EXPECT_EQ(declared("GELU(approximate='none')"), "torch.nn.GELU(approximate='none')");
  EXPECT_EQ(declared("Sequential(  (0): Linear(in_features=2, out_features=3, bias=True)  (1): "
                     "Sequential(    (0): ReLU(inplace)  ))"),
            "torch.nn.Sequential(torch.nn.Linear(in_features=2, out_features=3, bias=True), "
            "torch.nn.Sequential(torch.nn.ReLU(inplace=True)))");
  EXPECT_EQ(declared("EmuBidirLSTM(  (bidir): LSTM(8, 4, bidirectional=True)  (layer1): LSTM(8, 4)"
                     "  (layer2): LSTM(4, 4))"),
            "EmuBidirLSTM(4, 4)");
  EXPECT_THROW(declared("Block(  (conv): Conv2d(1, 2))"), Error);
}

TEST(TorchText, DescriptionsAsPyTorchPrintsThem) {
  for (const char* text :
       {"LayerNorm((4,), eps=1e-05, elementwise_affine=True, bias=True)",
        "RMSNorm((4,), eps=None, elementwise_affine=True)", "Softshrink(0.5)", "GLU(dim=-1)",
        "Upsample(size=(3, 3), mode='bilinear')", "AdaptiveMaxPool2d(output_size=(1, None))",
        "Unflatten(dim=1, unflattened_size=torch.Size([2, 3]))", "Sequential()", "Softmax2d()",
        "LSTM(3, 4, num_layers=2, batch_first=True, bidirectional=True)", "Identity()",
        "BatchNorm2d(3, eps=1e-05, momentum=None, affine=True, bias=True, "
        "track_running_stats=True)",
        "MultiheadAttention(8, 2)", "AvgPool1d(kernel_size=(2,), stride=[2], padding=(0,))"})
    EXPECT_EQ(Refused(text), std::string("written: torch.nn.") + text);
  EXPECT_EQ(Refused("ConstantPad1d(padding=(1, 1), value=-inf)"),
            "written: torch.nn.ConstantPad1d(padding=(1, 1), value=float('-inf'))");
  EXPECT_EQ(Refused("Conv2d(3, 8, kernel_size=(3, 3), padding=same)"),
            "written: torch.nn.Conv2d(3, 8, kernel_size=(3, 3), padding='same')");
  EXPECT_EQ(Refused("Dropout (p = 0.5)"), "written: torch.nn.Dropout(p=0.5)");
  EXPECT_EQ(Refused("torch.nn.ReLU()"), "written: torch.nn.ReLU()");
  EXPECT_EQ(Refused("torch.nn.modules.linear.Linear(3, 4)"), "written: torch.nn.Linear(3, 4)");
  EXPECT_EQ(Refused("Sequential(  (conv): Conv2d(3, 8, kernel_size=(3, 3))  (relu 1): "
                    "ReLU(inplace)  (a/b-c): Tanh())"),
            "written: torch.nn.Sequential(torch.nn.Conv2d(3, 8, kernel_size=(3, 3)), "
            "torch.nn.ReLU(inplace=True), torch.nn.Tanh())");
}

TEST(TorchText, WhatIsPrintedAndNotTakenIsLeftOut) {
  EXPECT_EQ(Refused("UpsamplingNearest2d(scale_factor=2.0, mode='nearest')"),
            "written: torch.nn.UpsamplingNearest2d(scale_factor=2.0)");
  EXPECT_EQ(Refused("UpsamplingBilinear2d(size=(2, 3), mode=bilinear)"),
            "written: torch.nn.UpsamplingBilinear2d(size=(2, 3))");
  EXPECT_EQ(Refused("Sequential(  (0): ZeroPad2d(padding=(0, 1, 0, 1), value=0.0))"),
            "written: torch.nn.Sequential(torch.nn.ZeroPad2d(padding=(0, 1, 0, 1)))");
  EXPECT_EQ(Refused("Upsample(scale_factor=2.0, mode=nearest-exact)"),
            "written: torch.nn.Upsample(scale_factor=2.0, mode='nearest-exact')");
  EXPECT_EQ(Refused("NonDynamicallyQuantizableLinear(in_features=4, out_features=3, bias=True)"),
            "written: torch.nn.Linear(in_features=4, out_features=3, bias=True)");
  for (const char* text : {"UpsamplingNearest2d(scale_factor=2.0, mode='bilinear')",
                           "ZeroPad2d(padding=(0, 1, 0, 1), value=1.0)",
                           "Upsample(scale_factor=2.0, mode=nearest-)"})
    EXPECT_TRUE(Refused(text).starts_with("g.txt:3:")) << text << ": " << Refused(text);
  for (const char* text : {"LazyLinear(in_features=0, out_features=3, bias=True)",
                           "LazyLinear(in_features=0, 3)"})
    EXPECT_TRUE(Refused(text).starts_with("g.txt:3:")) << text << ": " << Refused(text);
  EXPECT_EQ(Refused("LazyConv2d(0, 2, kernel_size=(3, 3), stride=(1, 1))"),
            "g.txt:3:10: node node4: LazyConv2d: the profile has no sizes for this lazy layer\n  "
            "run the model once on an input, then profile it: the layer is a Conv2d "
            "from then on");
}

TEST(TorchText, OnlyLiteralsGetThrough) {
  EXPECT_EQ(Refused("Linear(in_features=__import__(\"os\"))"),
            "g.txt:3:29: node node4: a number, a string, True, False, None, a tuple or a list is "
            "expected, not \"__import__(\"os\"))\"\n  describe the layer as print(layer) does: its "
            "name and its arguments");
  EXPECT_EQ(Refused("Conv2d(3, 8, kernel_size=(3, 3)"),
            "g.txt:3:16: node node4: this ( is never closed");
  EXPECT_EQ(Refused("Conv2d(3, 8) or 1"),
            "g.txt:3:23: node node4: nothing is expected after its description");
  for (const char* text :
       {"Conv2d(3, oops", "Linear(3, oops)", "Linear(3, 4 + 5)", "Linear(3 4)", "Linear(03, 4)",
        "Linear(3, [4, x])", "Linear(3, 1_0)", "Linear(3, 0x10)", "Linear(3, 4j)", "Linear(3, -)",
        "Linear(3, 'a)", "Linear(3, 'a' 'b')", "Linear(3, 'a'.b)", "Linear(3, f'{x}')",
        "Linear(3, 4, bias=x.y)", "Linear(3, 4, bias=x())", "Linear(3, 4, bias=lambda: 0)",
        "Linear(3, 4, bias=True if 1 else 0)", "Linear(*[3, 4])", "Linear(3, {4})",
        "Linear(3, 4.5.6)",
        "Linear(3, torch.load('x'))", "Linear(3, torch)", "Linear((3, 4)", "Linear(3, (4]",
        "Linear(3, '\\x41')", "Linear(3, 1e)", "Linear(3, 4))", "Linear(3, 4)[0]", "(3)",
        "torch.load('x')", "torch.nn.functional.relu(3)", "torch.nn.torch.nn.Linear(3, 4)", ""})
    EXPECT_TRUE(Refused(text).starts_with("g.txt:3:")) << text << ": " << Refused(text);
  EXPECT_TRUE(Refused("Linear(" + std::string(10000, '(')).starts_with("g.txt:3:"));
  std::string deep;
  for (int i = 0; i < 10000; ++i) deep += "Sequential(  (0): ";
  EXPECT_TRUE(Refused(deep).starts_with("g.txt:3:"));
  EXPECT_TRUE(Refused("Linear(3, " + std::string(5000, '9') + ")").starts_with("g.txt:3:"));
}

TEST(TorchText, LayersOfNobodyAreRefused) {
  EXPECT_EQ(Refused("Cnov2d(3, <function f>)"),
            "g.txt:3:10: node node4: there is no layer Cnov2d in torch.nn (did you mean "
            "\"Conv2d\"?)\n  name one that it has; a layer of your own is one that the model "
            "template imports: --model-template FILE with \"from MODULE import Cnov2d\"");
  EXPECT_EQ(Refused("Module(blocks.0)"),
            "g.txt:3:10: node node4: names a module of a package; codegen writes layers of "
            "torch.nn\n  a package needs no code: run it with the conf of the partition, "
            "pipewright-run train PACKAGE JOB --conf DIR/hybrid_conf.json");
  EXPECT_EQ(Refused("Sequential(  (0): ReLU()  (1): Foo(3))").substr(0, 44),
            "g.txt:3:41: node node4: there is no layer Fo");
  EXPECT_EQ(Refused("Linear(in_feature=3, out_features=4)"),
            "g.txt:3:17: node node4: torch.nn.Linear has no argument in_feature (did you mean "
            "\"in_features\"?)\n  its constructor takes (in_features, out_features, bias=)");
  EXPECT_EQ(Refused("Linear(3)"),
            "g.txt:3:10: node node4: torch.nn.Linear needs out_features\n  its constructor takes "
            "(in_features, out_features, bias=)");
  EXPECT_EQ(Refused("LSTM(3, 4, nonsense=5)"),
            "g.txt:3:21: node node4: torch.nn.LSTM has no argument nonsense\n  its constructor "
            "takes (input_size, hidden_size, num_layers=, bias=, batch_first=, dropout=, "
            "bidirectional=, proj_size=)");
  for (const char* text : {"Linear(3, 4, in_features=3)", "LSTM()", "RNN(3)",
                           "GRU(3, 4, proj_size=2)", "GRU(3, 4, nonlinearity='relu')",
                           "Linear(3, 4, True, 5)", "ModuleList()",
                           "Linear(bias=True, 3, 4)", "Linear(3, 4, bias=True, bias=True)",
                           "ReLU(inplace, inplace)", "Sequential(3)", "Sigmoid(3)",
                           "TransformerEncoderLayer(  (a): Linear(3, 4))"})
    EXPECT_TRUE(Refused(text).starts_with("g.txt:3:")) << text << ": " << Refused(text);
}

TEST(TorchText, TheTemplateIsReadAsPythonReadsIt) {
  const std::set<std::string> own = ClassesOf(
      "\"\"\"Layers:\nfrom nowhere import Nothing\n\"\"\"\n"
      "from a import One, \\\n    Two  # Nobody\nfrom b \\\r\n  import Three\r\n"
      "from\tc\timport\tFour\tas\tFive\nfrom d import Six; import os\n"
      "import sys; from .e import(Seven)\nfrom f import (Eight,  # (\n\n    Nine,\n)\n"
      "class\tTen(Two):\n    pass\nif x:\n    from g import Inner\n"
      "print('#'); from h import Eleven\n%(import_statements)s\nclass %(module_name)s(Two):\n");
  EXPECT_EQ(own, (std::set<std::string>{"Eight", "Eleven", "Five", "Nine", "One", "Seven", "Six",
                                        "Ten", "Three", "Two"}));
  EXPECT_EQ(Refused("Foo(3)", ClassesOf("from mylayers import *\n")),
            "g.txt:3:10: node node4: there is no layer Foo in torch.nn\n  the model template has "
            "\"import *\", whose names are not known: list those of your own layers, "
            "\"from MODULE import Foo\"");
  for (const char* text : {"'", "\"\"\"", "\\", "from", "from x import", "class", "'\\", "#",
                           "from x import (", "class *", "from x import ,,"})
    EXPECT_TRUE(ClassesOf(text).empty()) << text;
}

TEST(TorchText, OperationsTakeIntegers) {
  auto call = [](const std::string& text) {
    return OperationCall(Described(text), {"a"}, {0});
  };
  EXPECT_EQ(call("Size(0)"), "a.size(0)");
  EXPECT_EQ(call("View(-1, 9216)"), "a.view(a.size(0), -1, 9216)");
  EXPECT_EQ(call("Transpose(0, 1)"), "a.transpose(0, 1)");
  EXPECT_EQ(call("__getitem__(1)"), "a[1]");
  for (const char* text : {"Size(x)", "Size(__import__('os'))", "Size(0", "View(1.5)",
                           "Unsqueeze()", "Concat(1, 2)", "Transpose(1)", "__getitem__('x')",
                           "Size(dim=0)", "__getitem__((1))", "Concat(1) or 2", "View(True)",
                           "Size(-)", "View()"})
    EXPECT_THROW(call(text), Error) << text;
  auto sum = [](const std::string& text) {
    return OperationCall(Described(text), {"a", "b"}, {0, 0});
  };
  EXPECT_EQ(sum("Add(inplace)"), "a + b");
  EXPECT_EQ(sum("Mul"), "a * b");
  EXPECT_THROW(sum("Add(2)"), Error);
  EXPECT_THROW(sum("Add(alpha=2)"), Error);
}

TEST(TorchText, OwnLayersAreNamedAsTheTemplateHasThem) {
  const std::set<std::string> own = ClassesOf(
      "import torch\nimport os\nfrom mylayers import Foo, Bar as Baz  # Nobody\n"
      "from more import (\n    One,\n    Two)\nclass Dropout(torch.nn.Module):\n    pass\n"
      "class Plain:\n    from x import Inner\nclass %(module_name)s(torch.nn.Module):\n");
  EXPECT_EQ(own, (std::set<std::string>{"Baz", "Dropout", "Foo", "One", "Plain", "Two"}));
  EXPECT_EQ(Refused("Foo(3, name=small)", own), "written: Foo(3, name='small')");
  EXPECT_EQ(Refused("Dropout(3, 4)", own), "written: Dropout(3, 4)");
  EXPECT_EQ(Refused("Sequential(  (0): Foo(3)  (1): ReLU())", own),
            "written: torch.nn.Sequential(Foo(3), torch.nn.ReLU())");
  EXPECT_TRUE(Refused("Foo(3, os.system('x'))", own).starts_with("g.txt:3:17: "));
  EXPECT_EQ(Refused("Foo(3, class=4)", own),
            "g.txt:3:17: node node4: class is a keyword of Python");
  EXPECT_EQ(Refused("Foo(3, __debug__=4)", own),
            "g.txt:3:17: node node4: __debug__ is a keyword of Python");
  EXPECT_TRUE(Refused("Foo(  (a): Linear(3, 4))", own).starts_with("g.txt:3:10: "));
}

}  // namespace pipewright
