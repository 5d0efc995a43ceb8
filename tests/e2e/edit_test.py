"""A package is edited by hand and runs at once: confs, code, and mistakes in the code."""
import copy
import json
import re
import shutil
import unittest

import torch.nn.functional as F

from support import Case, export_gpt, gpt, pipewright, run_ranks, token_job


class Edit(Case):
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

    def test_a_weight_that_is_not_there(self):
        package = self.copy_package("weight.pkg")
        self.edit(package, r'self, "blocks\.1\.up\.bias"', 'self, "blocks.1.up.bais"')
        result = run_ranks(4, "train", package, self.write_job(token_job()))
        self.assert_fails(result, r"modules/module1\.py: does not compile", "<--- HERE")
        self.assertEqual(result.out.count("blocks.1.up.bais"), 2, result.out)

    def test_an_output_of_another_shape_is_blamed_on_the_edit(self):
        package = self.copy_package("shape.pkg")
        self.edit(package, r"return (\w+)$", r"return torch.transpose(\1, 0, 2)")
        result = run_ranks(4, "train", package, self.write_job(token_job()), mpi=False)
        self.assert_fails(result, r"modules/module1\.py: returns \w+ \[32, 16, 2\], manifest\.json "
                                  r"says \[\w+, 16, 32\]")
        self.assertNotIn("tracing", result.out)

    def test_a_syntax_error(self):
        self.check_broken("syntax.pkg", r"= torch\.gelu\(", "= = torch.gelu(")

    def test_an_error_while_running_shows_the_line(self):
        """An index out of range where the values are not zero, that is, in the run only."""
        package = self.copy_package("running.pkg")
        line = self.edit(package, r"torch\.gelu\((\w+)[^)]*\)",
                         r"torch.add(torch.gelu(\1), torch.sum(torch.embedding("
                         r"blocks_1_up_weight, torch.to(torch.mul(\1, 1e9), 4))))")
        result = run_ranks(4, "train", package, self.write_job(token_job()))
        self.assert_fails(result, "rank 0, stage 0, microbatch 0, action 0F0",
                          r"module1\.py\D*\b%d\b" % line, "<--- HERE", "index")


def relu_block(block, x):
    x = x + block.attention(block.norm1(x))
    return x + block.down(F.relu(block.up(block.norm2(x))))


if __name__ == "__main__":
    unittest.main()
