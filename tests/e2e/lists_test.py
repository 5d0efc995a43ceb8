"""Modules as lists of operations (runtime/recorded): the bits of autograd's bodies."""
import json
import unittest

from support import RUN, Case, call, export_gpt, gpt, run_ranks, token_job


class Lists(Case):
    def succeed(self, result):
        self.text = result.out
        return super().succeed(result)

    def test_the_bits_of_autograd(self):
        export_gpt(gpt(tied=True, dropout=0.1), self.path("gpt.pt2"))  # 6 modules
        package = self.compile("gpt.pt2", "gpt.pkg")
        conf = self.path("conf.json")
        conf.write_text(json.dumps({"module_to_stage_map": [0, 0, 1, 1, 2, 2],
                                    "stage_to_rank_map": {str(s): [s] for s in range(3)}}))
        for schedule, mpi in (("1f1b", False), ("zb-h1", True)):
            job = token_job(schedule=schedule, microbatches=4, steps=4)
            runs = {}
            for body in ("autograd", "lists"):
                runs[body] = self.train(package, job, 3, mpi, conf, {"PIPEWRIGHT_BODY": body})
                for module in range(6):
                    told = f"module {module} runs as lists of operations"
                    (self.assertIn if body == "lists" else self.assertNotIn)(told, self.text)
            self.assert_same_run(runs["lists"], runs["autograd"], f"{schedule}: ")

    def test_the_faster_one(self):
        export_gpt(gpt(dropout=0.1), self.path("auto.pt2"))
        package = self.compile("auto.pt2", "auto.pkg", "--ranks", "2")
        job = token_job(microbatches=4, steps=6)
        expected = self.train(package, job, 2, mpi=False)
        self.assertNotIn("module 0", self.text.split("busy")[-1].split("\n", 1)[1])
        found = self.train(package, {**job, "body": "auto"}, 2, mpi=False)
        self.assertRegex(self.text, r"modules? 0(-\d)?: (lists of operations|autograd \()")
        self.assert_same_run(found, expected)

    def test_a_variable_that_one_rank_has(self):
        export_gpt(gpt(), self.path("one.pt2"))
        package = self.compile("one.pt2", "one.pkg", "--ranks", "2")
        job = self.write_job(token_job(steps=2))
        program = [RUN, "train", package, job]
        result = call(["mpirun", "-n", 1, "env", "PIPEWRIGHT_BODY=autograd", *program,
                       ":", "-n", 1, *program])
        self.succeed(result)
        self.assertIn("modules 0-2: autograd (asked for)", result.out)

    def test_an_unknown_body(self):
        export_gpt(gpt(), self.path("plain.pt2"))
        package = self.compile("plain.pt2", "plain.pkg", "--ranks", "1")
        job = self.write_job(token_job(steps=1))
        self.assert_fails(run_ranks(1, "train", package, job, mpi=False,
                                    environment={"PIPEWRIGHT_BODY": "list"}),
                          'there is no body "list"', "auto, autograd or lists")


if __name__ == "__main__":
    unittest.main()
