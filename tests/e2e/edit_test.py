"""A package is edited by hand and runs at once: confs, code, and mistakes in the code."""
import copy
import json
import re
import shutil
import unittest

import torch
import torch.nn.functional as F
from safetensors import safe_open
from safetensors.torch import load_file, save_file

from support import Case, export_gpt, gpt, pipewright, run_ranks, token_job


# The signature of forward, and its input.
FORWARD = r"(  def forward\(self, (\w+): Tensor\) -> Tensor:\n)"


class Edits(Case):
    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        cls.model = gpt(tied=False)
        export_gpt(cls.model, cls.folder / "gpt.pt2")
        cls.package = cls.compile("gpt.pt2", "gpt.pkg", "--ranks", "4")

    def copy_package(self, name):
        shutil.copytree(self.package, self.path(name))
        return self.path(name)

    def edit(self, package, pattern, replacement):
        """Replaces the first match in modules/module1.py; returns the number of its line."""
        path = package / "modules/module1.py"
        before = path.read_text()
        match = re.search(pattern, before, re.M)
        self.assertTrue(match, before)
        path.write_text(before[:match.start()] + match.expand(replacement) + before[match.end():])
        return before[:match.start()].count("\n") + 1


class Edit(Edits):
    def test_a_conf_for_4_ranks_edited_to_2(self):
        job = token_job()
        package = self.copy_package("conf.pkg")
        four = self.train(package, job, 4)
        path = package / "conf/mp_conf.json"
        conf = json.loads(path.read_text())
        stages = conf["module_to_stage_map"][:6]
        self.assertEqual(sorted(set(stages)), [0, 1, 2, 3])
        conf["module_to_stage_map"] = [stage // 2 for stage in stages]
        conf["stage_to_rank_map"] = {"0": [0], "1": [1]}
        path.write_text(json.dumps(conf))
        self.assert_same_run(self.train(package, job, 2), four)

    def test_a_conf_with_an_entry_for_the_loss(self):
        job = token_job(steps=3)
        conf = {"module_to_stage_map": [0, 0, 1, 1, 2, 2, 2],
                "stage_to_rank_map": {"0": [0], "1": [1], "2": [2]}}
        self.path("loss.json").write_text(json.dumps(conf))
        self.assert_same_run(self.train(self.package, job, 3, conf=self.path("loss.json")),
                             self.train(self.package, job, 4))

    def test_two_stages_on_one_rank(self):
        job = token_job(steps=3)
        conf = {"module_to_stage_map": [0, 0, 1, 1, 2, 2],
                "stage_to_rank_map": {"0": [0], "1": [1], "2": [0]}}
        self.path("loop.json").write_text(json.dumps(conf))
        self.assert_same_run(self.train(self.package, job, 2, conf=self.path("loop.json")),
                             self.train(self.package, job, 4))

    def test_compiling_again_keeps_what_was_edited(self):
        model, package = self.path("gpt.pt2"), self.copy_package("kept.pkg")
        code = package / "modules/module1.py"
        code.write_text(code.read_text() + "# mine\n")
        self.assert_fails(pipewright("compile", model, "-o", package), "kept.pkg",
                          "modules/module1.py", "--force")
        self.assertIn("# mine", code.read_text())
        self.succeed(pipewright("compile", model, "-o", package, "--force"))
        self.assertNotIn("# mine", code.read_text())
        self.succeed(pipewright("compile", model, "-o", package))
        for name in ("conf/mine.json", "trained.safetensors", "conf/hybrid_conf.json"):
            (package / name).write_text("{}")
            self.assert_fails(pipewright("compile", model, "-o", package), name, "--force")
            (package / name).unlink()

    def test_relu_for_gelu_is_pytorchs_relu(self):
        job = token_job()
        package = self.copy_package("relu.pkg")
        self.edit(package, r"torch\.gelu\((\w+)[^)]*\)", r"torch.relu(\1)")
        ours = self.train(package, job, 4)

        model = copy.deepcopy(self.model)
        block = model.blocks[1]
        block.forward = lambda x: relu_block(block, x)
        self.assert_same_run(ours, self.train_pytorch(model, job))
        unedited = self.train(self.package, job, 4)
        self.assertNotEqual(ours.losses, unedited.losses)

    def test_saved_weights_say_which_modules_were_edited(self):
        package = self.copy_package("noted.pkg")
        self.edit(package, r"torch\.gelu\((\w+)[^)]*\)", r"torch.relu(\1)")
        saved = self.path("noted.safetensors")
        job = self.write_job(token_job(steps=1, checkpoint={"to": "noted"}))
        note = r"note: edited since the model was compiled: modules/module1\.py \(line \d+\)\."
        text = self.succeed(run_ranks(4, "train", package, job, "--save", saved)).out
        self.assertEqual(len(re.findall(note, text)), 1, text)
        self.assertIn("saved weights say so", text)
        with safe_open(saved, "pt") as file:
            self.assertRegex(file.metadata()["pipewright.edited"], r"^modules/module1\.py [0-9a-f]{16}$")
        merged = self.path("merged.safetensors")
        self.succeed(pipewright("weights", "merge", self.path("noted"), "-o", merged))
        with safe_open(merged, "pt") as file:
            self.assertIn("modules/module1.py", file.metadata()["pipewright.edited"])
        save_file({"tokens": torch.randint(256, (2, 16))}, self.path("in.safetensors"))

        def infer(of, *options):
            return self.succeed(run_ranks(4, "infer", of, "--input", self.path("in.safetensors"), "-o",
                                          self.path("out.safetensors"), *options, mpi=False)).out

        self.assertRegex(infer(package, "--weights", saved), note)
        self.assertNotIn("warning", infer(package, "--weights", saved))
        self.assertRegex(infer(self.package, "--weights", saved),
                         r"noted\.safetensors: it was trained in a package with edited code \(modules/module1")
        self.assertNotIn("edited", infer(self.package))
        self.assertIn("was trained in a package with edited code", self.succeed(pipewright(
            "compile", self.path("gpt.pt2"), "-o", self.path("home.pkg"), "--weights", saved)).out)

    def test_what_an_edited_module_prints_shows_once(self):
        package = self.copy_package("prints.pkg")
        self.edit(package, FORWARD, r'\1    print("seen", \2.size(0))\n')
        save_file({"tokens": torch.randint(256, (2, 16))}, self.path("in.safetensors"))
        for rows, options in ((2, ()), (1, ("--microbatches", 2))):
            text = self.succeed(run_ranks(4, "infer", package, "--input", self.path("in.safetensors"), "-o",
                                          self.path("out.safetensors"), *options, mpi=False)).out
            self.assertEqual(text.count("seen"), 2 // rows, text)
        text = self.succeed(run_ranks(4, "train", package, self.write_job(token_job(
            steps=2, microbatches=2, body="autograd")), mpi=False)).out
        self.assertEqual(text.count("seen"), 4, text)

    def test_a_package_without_confs(self):
        package = self.copy_package("confless.pkg")
        shutil.rmtree(package / "conf")
        job = self.write_job(token_job(steps=1))
        for command in (lambda: run_ranks(3, "train", package, job),
                        lambda: run_ranks(3, "train", package, job, mpi=False),
                        lambda: pipewright("plan", package, job, "--ranks", "3")):
            self.assert_fails(command(), r"conf/mp_conf\.json: is missing",
                              r"pipewright conf \S+confless\.pkg --ranks 3 -o conf\.json")
        conf = self.path("made.json")
        self.succeed(pipewright("conf", package, "--ranks", 3, "-o", conf))
        self.succeed(run_ranks(3, "train", package, job, "--conf", conf, mpi=False))

    def check_broken(self, name, pattern, replacement, *texts):
        package = self.copy_package(name)
        line = self.edit(package, pattern, replacement)
        for mpi in (True, False):
            result = run_ranks(4, "train", package, self.write_job(token_job()), mpi=mpi)
            self.assert_fails(result, r"modules/module1\.py\D*\b%d\b" % line, "<--- HERE", *texts)
            self.assertEqual(result.out.count("<--- HERE"), 1, result.out)

    def test_an_unknown_operation(self):
        self.check_broken("unknown.pkg", r"torch\.gelu\(", "torch.gelo(", "gelo")

    def test_an_unknown_name(self):
        self.check_broken("name.pkg", r"torch\.gelu\(\w+", "torch.gelu(nowhere", "nowhere")

    def test_names_of_python_alone(self):
        self.check_broken("dtype.pkg", r"return (\w+)$", r"return torch.to(\1, torch.float23)",
                          "no such dtype or constant: write torch.float32")
        self.check_broken("no_grad.pkg", r"    return (\w+)$",
                          r"    with torch.no_grad():\n      y = \1\n    return \1",
                          r"write torch\.detach\(x\), or torch\.set_grad_enabled\(False\)")

    def test_a_weight_that_is_not_there(self):
        package = self.copy_package("weight.pkg")
        self.edit(package, r'self, "blocks\.1\.up\.bias"', 'self, "blocks.1.up.bais"')
        result = run_ranks(4, "train", package, self.write_job(token_job()))
        self.assert_fails(result, r"modules/module1\.py: does not compile", "<--- HERE")
        self.assertEqual(result.out.count("blocks.1.up.bais"), 2, result.out)

    def test_an_output_of_another_shape_is_blamed_on_the_edit(self):
        package = self.copy_package("shape.pkg")
        line = self.edit(package, r"return (\w+)$", r"return torch.transpose(\1, 0, 2)")
        result = run_ranks(4, "train", package, self.write_job(token_job()), mpi=False)
        self.assert_fails(result, r"modules/module1\.py:%d: returns \w+ float32 \[32, 16, 2\], "
                                  r"manifest\.json says float32 \[\w+, 16, 32\]" % line,
                          "return it like that")
        self.assertNotIn("tracing", result.out)
        for command in (["plan", package, self.path("job.json"), "--ranks", 4],
                        ["conf", package, "--check", package / "conf/mp_conf.json"]):
            self.assert_fails(pipewright(*command),
                              r"modules/module1\.py:%d: returns \w+ float32 \[" % line,
                              "return it like that", r"module2\.py: fails on ")

    def test_another_value_returned_is_blamed_on_the_return(self):
        package = self.copy_package("other.pkg")
        self.edit(package, FORWARD, r"\1    other = \2[0]\n")
        line = self.edit(package, r"return (\w+)$", "return other")
        result = run_ranks(4, "train", package, self.write_job(token_job()), mpi=False)
        self.assert_fails(result, r"modules/module1\.py:%d: returns \w+ float32" % line)

    def test_an_output_of_another_size(self):
        """No module uses it: commands warn, and the loss's error comes with the warning."""
        package = self.copy_package("output.pkg")
        path = max((package / "modules").iterdir())
        text, number = re.subn(r"return (\w+)$", r"return torch.reshape(\1, [-1])",
                               path.read_text(), flags=re.M)
        self.assertEqual(number, 1)
        path.write_text(text)
        line = text[:text.index("    return ")].count("\n") + 1
        warning = (r"warning: \S+modules/module\d\.py:%d: returns \w+ float32 \[\d+\], manifest\.json"
                   r" says float32 \[s\d+, .*\]\n  return it like that or, if that is intended,"
                   r" change manifest\.json" % line)
        for command in (["plan", package, self.write_job(token_job()), "--ranks", 4],
                        ["conf", package, "--check", package / "conf/mp_conf.json"]):
            self.assertRegex(self.succeed(pipewright(*command)).out, warning)
        result = run_ranks(4, "train", package, self.write_job(token_job()), mpi=False)
        self.assertRegex(result.out, warning)
        self.assert_fails(result, "cross_entropy needs an output")

    def test_what_is_no_torchscript(self):
        for name, new, cure in (
                ("math", "math.sqrt(2.0)", "math is not available in modules: write the number"),
                ("numpy", r"np.tanh(\1)", "a module can use its inputs, self, torch"),
                ("F", r"F.gelu(\1)", r"write torch\.relu\(x\) for F\.relu\(x\)")):
            with self.subTest(name):
                package = self.copy_package(name + ".pkg")
                line = self.edit(package, r"torch\.gelu\((\w+)[^)]*\)", new)
                result = pipewright("conf", package, "--check", package / "conf/mp_conf.json")
                self.assert_fails(result, r"module1\.py: does not compile",
                                  r'module1\.py", line %d\b' % line, "<--- HERE", cure)
        package = self.copy_package("nothing.pkg")
        self.edit(package, r"return (\w+)$", "return")
        result = pipewright("conf", package, "--check", package / "conf/mp_conf.json")
        self.assert_fails(result, "is actually of type NoneType", r"lists as \"out\"")

    def test_what_autograd_would_refuse(self):
        for name, new, said in (
                ("write", r"torch.gelu(\1) + blocks_1_up_weight.add_(1.0).sum()",
                 r"torch\.add_ writes in place to the parameter blocks\.1\.up\.weight, which is trained"),
                ("switch", r"torch.gelu(\1).requires_grad_(False)",
                 "requires_grad_ changes what is trained")):
            with self.subTest(name):
                package = self.copy_package(f"autograd-{name}.pkg")
                line = self.edit(package, r"torch\.gelu\((\w+)[^)]*\)", new)
                result = pipewright("conf", package, "--check", package / "conf/mp_conf.json")
                self.assert_fails(result, r"module1\.py:%d: %s" % (line, said))

    def test_a_syntax_error(self):
        self.check_broken("syntax.pkg", r"= torch\.gelu\(", "= = torch.gelu(")

    def test_an_error_while_running_shows_the_line(self):
        """An index that is out of range only for nonzero values, that is, only in the run."""
        package = self.copy_package("running.pkg")
        line = self.edit(package, r"torch\.gelu\((\w+)[^)]*\)",
                         r"torch.add(torch.gelu(\1), torch.sum(torch.embedding("
                         r"blocks_1_up_weight, torch.to(torch.mul(\1, 1e9), 4))))")
        result = run_ranks(4, "train", package, self.write_job(token_job()))
        self.assert_fails(result, "rank 0, stage 0, microbatch 0, action 0F0",
                          r"module1\.py\D*\b%d\b" % line, "<--- HERE", "index",
                          r"in the model: blocks\.1  \S*model\.py:\d+: ")

    def test_an_edit_above_the_line_that_fails_is_named(self):
        package = self.copy_package("narrow.pkg")
        line = self.edit(package, FORWARD, r"\1    \2 = torch.narrow(\2, -1, 0, 3)\n") + 1
        job = self.write_job(token_job())
        for result in (pipewright("plan", package, job, "--ranks", 4),
                       pipewright("conf", package, "--check", package / "conf/mp_conf.json"),
                       run_ranks(4, "train", package, job, mpi=False)):
            self.assert_fails(result, "<--- HERE",
                              r"edited since the model was compiled: modules/module1\.py \(line %d\)" % line,
                              "change what was edited, or the line that fails")


class Gradients(Edits):
    """Edits after which a weight is no longer trained."""

    def warnings(self, package):
        job = self.write_job(token_job(steps=1, save="warned.safetensors"))
        result = run_ranks(4, "train", package, job, mpi=False)
        self.succeed(result)
        return re.findall(r"warning: (.*)", result.out)

    def test_a_detach_that_ends_the_training_of_earlier_modules(self):
        package = self.copy_package("detach.pkg")
        self.assertEqual(self.warnings(package), [])
        line = self.edit(package, FORWARD, r"\1    \2 = torch.detach(\2)\n") + 1
        warning, = self.warnings(package)
        self.assertRegex(warning, r"^module 0 gets no gradient any more: \S+/module1\.py:%d:"
                                  r" (\w+) = torch\.detach\(\1\)$" % line)
        trained = self.train(package, token_job(steps=1), 4, mpi=False)
        self.assertFalse(trained.gradients["blocks.0.up.weight"].any())
        self.assertTrue(trained.gradients["blocks.1.up.weight"].any())

    def test_data_that_ends_the_training_of_earlier_modules(self):
        package = self.copy_package("data.pkg")
        line = self.edit(package, FORWARD, r"\1    \2 = torch.mul(\2.data, 1.0)\n") + 1
        warning, = self.warnings(package)
        self.assertRegex(warning, r"^module 0 gets no gradient any more: \S+/module1\.py:%d:"
                                  r" (\w+) = torch\.mul\(\1\.data, 1\.0\)$" % line)

    def test_a_module_that_gives_on_no_gradient(self):
        package = self.copy_package("out.pkg")
        line = self.edit(package, r"return (\w+)$", r"return \1.detach()")
        warning, = self.warnings(package)
        self.assertRegex(warning,
                         r"^modules 0-1 get no gradient any more: .*module1\.py:%d: return" % line)

    def test_whole_numbers(self):
        package = self.copy_package("long.pkg")
        line = self.edit(package, r"return (\w+)$", r"return \1.long()")
        path = package / "modules/module2.py"  # its norms do not accept integers
        path.write_text(re.sub(FORWARD, r"\1    \2 = torch.to(\2, torch.float32)\n",
                               path.read_text()))
        dtype, warning = self.warnings(package)
        self.assertRegex(dtype, r"module1\.py:%d: returns \w+ int64 \[.*\], manifest\.json says "
                                r"float32 \[" % line)
        self.assertRegex(warning, r"^modules 0-1 get no gradient any more: "
                                  r".*module1\.py:%d: return" % line)

    def test_a_size_that_the_next_module_broadcasts(self):
        package = self.copy_package("broadcast.pkg")
        line = self.edit(package, r"return (\w+)$", r"return \1[:, :1]")
        path = package / "modules/module2.py"
        path.write_text(re.sub(FORWARD, r"\1    \2 = torch.expand(\2, [-1, 16, -1])\n",
                               path.read_text()))
        warning, = self.warnings(package)
        self.assertRegex(warning, r"module1\.py:%d: returns \w+ float32 \[\d+, 1, \d+\], "
                                  r"manifest\.json says float32 \[" % line)

    def test_gradients_switched_off(self):
        package = self.copy_package("switch.pkg")
        line = self.edit(package, FORWARD, r"\1    torch.set_grad_enabled(False)\n") + 1
        warning, = self.warnings(package)
        self.assertRegex(warning, r"^modules 0-1 get no gradient any more: .*module1\.py:%d: "
                                  r"torch\.set_grad_enabled\(False\)$" % line)

    def test_weights_that_get_none(self):
        package = self.copy_package("weights.pkg")
        line = self.edit(package, r"torch\.gelu\((\w+)[^)]*\)", r"torch.round(torch.detach(\1))")
        warning, = self.warnings(package)
        self.assertRegex(warning, r"blocks\.1\.up\.weight, blocks\.1\.up\.bias get no gradient: "
                                  r".*module1\.py:%d: \w+ = torch\.round\(torch\.detach" % line)

    def test_what_was_frozen_is_not_missed(self):
        package = self.copy_package("frozen.pkg")
        self.edit(package, FORWARD, r"\1    \2 = torch.detach(\2)\n")
        job = self.write_job(token_job(steps=1, freeze=["embedding.*", "position.*", "blocks.0.*"]))
        result = run_ranks(4, "train", package, job, mpi=False)
        self.succeed(result)
        self.assertNotIn("no gradient", result.out)


class Parameter(Edits):
    """A parameter that is added in code and weight file."""

    def added(self, name, pattern, replacement):
        package = self.copy_package(name)
        path = package / "weights/module1.safetensors"
        weights = load_file(path)
        weights["blocks.1.scale"] = torch.full((32,), 0.5)
        save_file(weights, path)
        self.edit(package, pattern, replacement)
        return package

    def test_the_manifests_entry_is_asked_for(self):
        package = self.added("scale.pkg", r"return (\w+)$",
                             r'return torch.mul(\1, getattr(self, "blocks.1.scale"))')
        job = token_job(steps=5)
        result = run_ranks(4, "train", package, self.write_job(job), mpi=False)
        self.assert_fails(result, r"module1\.py: does not compile", "<--- HERE",
                          r'holds "blocks\.1\.scale"', r'"held" of module1 in manifest\.json')
        entry = json.loads(re.search(r"in manifest\.json: (\{.*\})", result.out)[1])
        manifest = json.loads((package / "manifest.json").read_text())
        manifest["modules"][1]["held"].append(entry)
        (package / "manifest.json").write_text(json.dumps(manifest))
        ours = self.train(package, job, 4)

        model = copy.deepcopy(self.model)
        block, plain = model.blocks[1], model.blocks[1].forward
        block.scale = torch.nn.Parameter(torch.full((32,), 0.5))
        block.forward = lambda x: plain(x) * block.scale
        theirs = self.train_pytorch(model, job)
        self.assert_same_run(ours, theirs)
        self.assertTrue(torch.equal(ours.gradients["blocks.1.scale"],
                                    theirs.gradients["blocks.1.scale"]))

    def test_a_declaration_asks_for_it_too(self):
        package = self.added("declared.pkg", r"^class Module1.*\n",
                             r'\g<0>  __annotations__["blocks.1.scale"] = Tensor\n')
        self.assert_fails(run_ranks(4, "train", package, self.write_job(token_job()), mpi=False),
                          "which manifest.json does not list", r'"requires_grad":true')


class Refused(Edits):
    """Edits that would silently have no effect, or differ between ranks."""

    def refuse(self, name, pattern, replacement, *texts, line=0):
        package = self.copy_package(name)
        at = self.edit(package, pattern, replacement) + line
        result = run_ranks(4, "train", package, self.write_job(token_job()), mpi=False)
        self.assert_fails(result, r"modules/module1\.py(:|\D*)%d\b" % at, *texts)
        # The same, without a run.
        for command in (["plan", package, self.path("job.json")],
                        ["conf", package, "--check", package / "conf/mp_conf.json"]):
            self.assert_fails(pipewright(*command), *texts)
        return result

    def test_imports(self):
        self.refuse("import.pkg", r"\A", "import math\n", "<--- HERE", "cannot import anything")
        self.refuse("from.pkg", r"\A", "from math import sqrt\n", "<--- HERE", "cannot import anything")
        self.refuse("inside.pkg", FORWARD, r"\1    import math\n", "<--- HERE", "cannot import anything",
                    line=1)
        self.refuse("from inside.pkg", FORWARD, r"\1    from math import sqrt\n", "from math import sqrt",
                    "cannot import anything", line=1)

    def test_writes_through_data(self):
        """Autograd and version counters do not see such writes."""
        self.refuse("data.pkg", FORWARD, r"\1    \2.data.mul_(0.9)\n", r"it writes into its input \w+, which other",
                    r"torch\.clone\(", line=1)
        self.refuse("weight.data.pkg", FORWARD, r'\1    getattr(self, "blocks.1.up.bias").data.mul_(0.9)\n',
                    r"torch\.mul_ writes through \.data to the parameter blocks\.1\.up\.bias",
                    "constrain a buffer, or the value", line=1)

    def test_writes_that_libtorch_drops(self):
        """LibTorch drops them while parsing: by their schemas, these operations return new tensors."""
        for number, (write, what) in enumerate([
                ("torch.atleast_3d(\\2).mul_(2.0)", "mul_"),
                ("torch.einsum('...ij->...ji', [\\2]).zero_()", "zero_"),
                ("\\2.type_as(\\2).add_(1)", "add_"),
                ("torch.dropout(\\2, 0.5, False)[0] = 1.0", r"\[...\] ="),
                ("view = torch.atleast_3d(\\2)\n    view += 1", r"\+="),
                # One of two writes on a line is kept.
                ("kept = torch.clone(\\2)\n    torch.atleast_3d(kept.mul_(2.0)).add_(1)\n"
                 "    assert kept.size(0) > 0", "add_"),
                # Another write of the same name is kept.
                ("kept = torch.clone(\\2)\n    torch.atleast_3d(kept).mul_(2.0)\n    kept.mul_(2.0)\n"
                 "    assert kept.size(0) > 0", "mul_"),
        ]):
            with self.subTest(write):
                self.refuse(f"dropped{number}.pkg", FORWARD, r"\1    " + write + "\n",
                            what + " would have no effect", r"x\.mul_\(2\.0\)", line=1 + min(write.count("\n"), 1))

    def test_writes_that_are_left_are_not_refused(self):
        """Writes under another name, on several lines, and to numbers."""
        package = self.copy_package("left.pkg")
        self.edit(package, FORWARD,
                  r"\1    kept = torch.clone(\2)\n    kept.clip_(-100.0, 100.0)\n    kept[0] = kept[0] * 1.0\n"
                  r"    kept += 0.0\n    count = 0\n    count += kept.size(0)\n"
                  r"    kept = (kept\n        .mul_(1.0)\n        .add_(0.0))\n    \2 = kept + (count - count)\n")
        result = run_ranks(4, "train", package, self.write_job(token_job(steps=2)), mpi=False)
        self.succeed(result)

    def test_what_stands_beside_the_class(self):
        self.refuse("two.pkg", r"\Z", "class Other(Module):\n  def forward(self):\n    return 1\n",
                    "one class, Module1")
        self.refuse("function.pkg", r"\Z", "def act(x: Tensor) -> Tensor:\n  return x\n",
                    "write helpers as methods")
        self.refuse("global.pkg", r"\A", "scale = 2.0\n", "one class and nothing beside it")

    def test_a_missing_return(self):
        for name, signature in (("typed.pkg", r"-> Tensor:"), ("untyped.pkg", ":")):
            package = self.copy_package(name)
            self.edit(package, r"-> Tensor:", signature)
            line = self.edit(package, r"\n    return \w+\n", "\n")
            result = run_ranks(4, "train", package, self.write_job(token_job()), mpi=False)
            self.assert_fails(result, r"module1\.py\D*\b%d\b" % line, "<--- HERE", "end it with")

    def test_random_numbers_of_each_rank(self):
        for name, call in (("dropout.pkg", "torch.dropout({}, 0.5, self.training)"),
                           ("rand.pkg", "torch.mul({}, torch.rand([32]))")):
            self.refuse(name, r"return (\w+)$", "return " + call.format(r"\1"),
                        "different random numbers on each rank", r"ops\.pipewright\.")

    def test_dropout_between_the_layers_of_an_rnn(self):
        weights = ", ".join(["torch.ones([128, 32])"] * 4)
        call = ("torch.lstm({0}, [torch.zeros([2, 2, 32]), torch.zeros([2, 2, 32])], "
                f"[{weights}], False, 2, 0.5, self.training, False, True)[0]")
        self.refuse("lstm.pkg", r"return (\w+)$", "return " + call.format(r"\1"),
                    "different random numbers on each rank", "for one layer at a time",
                    r"ops\.pipewright\.dropout")

    def test_random_numbers_that_are_repeated(self):
        package, job = self.copy_package("repeated.pkg"), token_job(steps=2)
        self.edit(package, r"return (\w+)$",
                  r"return ops.pipewright.dropout(\1, 0.5, self.training, 1000)")
        self.assert_same_run(self.train(package, job, 4, mpi=False),
                             self.train(package, {**job, "recompute": True}, 4, mpi=False))

    def test_an_attribute_that_is_assigned(self):
        self.refuse("assign.pkg", r"return (\w+)$", r"self.training = False\n    return \1",
                    r"self\.training is assigned")

    def test_outputs_of_another_type_and_number(self):
        self.refuse("int.pkg", r"-> Tensor:((?:.|\n)*)return (\w+)$", r"-> int:\1return 3",
                    "returns int as", line=self.lines_of_forward())
        self.refuse("two_out.pkg", r"-> Tensor:((?:.|\n)*)return (\w+)$",
                    r"-> Tuple[Tensor, Tensor]:\1return (\2, \2)", "returns 2 values",
                    line=self.lines_of_forward())

    def lines_of_forward(self):
        text = (self.package / "modules/module1.py").read_text()
        return text[text.index("def forward"):].rstrip().count("\n")

    def test_a_write_into_an_input(self):
        package = self.copy_package("write.pkg")
        self.edit(package, FORWARD, r"\1    torch.relu_(\2)\n")
        self.assert_fails(run_ranks(4, "train", package, self.write_job(token_job()), mpi=False),
                          "writes into its input", r"torch\.clone\(")

    def test_dtypes_by_name_and_by_number(self):
        packages = []
        for name, dtype in (("named.pkg", "torch.float64"), ("number.pkg", "7"),
                            ("short.pkg", "torch.double")):
            packages.append(self.copy_package(name))
            self.edit(packages[-1], r"return (\w+)$",
                      r"return torch.to(torch.to(\1, %s), torch.float32)" % dtype)
        runs = [self.train(package, token_job(steps=2), 4, mpi=False) for package in packages]
        for run in runs[1:]:
            self.assert_same_run(run, runs[0])


def relu_block(block, x):
    x = x + block.attention(block.norm1(x))
    return x + block.down(F.relu(block.up(block.norm2(x))))


if __name__ == "__main__":
    unittest.main()
