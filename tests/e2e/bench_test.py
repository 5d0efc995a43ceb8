"""bench --on-request: the requests of the programs in bench/."""
import json
import unittest

from support import RUN, Case, call, export_gpt, gpt, run_ranks, token_job

RANKS = 2


class Requests(Case):
    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        export_gpt(gpt(tied=False, layers=3), cls.folder / "gpt.pt2")
        cls.package = cls.compile("gpt.pt2", "gpt.pkg", "--split", "equal:4")

    def ask(self, schedule, *requests):
        job = self.write_job(token_job(schedule=schedule, check_shared=None,
                                       optimizer={"type": "sgd", "lr": 0.1}))
        lines = "".join(request + "\\n" for request in requests)
        out = self.path("answers.txt")
        self.succeed(call(["sh", "-c", f"printf '{lines}' | mpirun -n {RANKS} {RUN} bench {self.package} {job} "
                                       f"--conf {self.conf(schedule)} --on-request > {out}"]))
        answers = [json.loads(line) for line in out.read_text().splitlines() if line.startswith("{")]
        self.assertEqual(len(answers), len(requests))
        return answers

    def conf(self, schedule):
        ranks = [0, 1, 1, 0] if schedule == "zbv" else [0, 1, 0, 1]
        path = self.path(f"{schedule}.conf.json")
        path.write_text(json.dumps({"module_to_stage_map": [0, 1, 2, 3],
                                    "stage_to_rank_map": {str(s): [r] for s, r in enumerate(ranks)}}))
        return path

    def test_stages_alone(self):
        """Each stage has times of its actions, and measuring them does not affect later steps."""
        for schedule in ("interleaved", "zbv"):
            with self.subTest(schedule=schedule):
                _, stages, halves, after = self.ask(schedule, "steps 2", "stages 0.01", "halves 0.01", "steps 2 each")
                for stage in stages["stages"]:
                    self.assertLessEqual({"F", "step"}, set(stage))
                for stage in halves["stages"]:
                    self.assertEqual({"F", "B", "I", "W"}, set(stage))
                self.assertEqual((len(stages["stages"]), len(halves["stages"])), (4, 4))
                self.assertTrue(all(time > 0 for answer in (stages, halves) for stage in answer["stages"]
                                    for times in stage.values() for time in times))
                alone = self.ask(schedule, "steps 4")[0]
                self.assertEqual(after["losses"], alone["losses"])

    def test_other_weights(self):
        job = self.write_job(token_job(schedule="1f1b", check_shared=None, steps=3, save="trained.safetensors",
                                       optimizer={"type": "sgd", "lr": 0.1}))
        self.path("one.json").write_text('{"module_to_stage_map": [0, 0, 0, 0], "stage_to_rank_map": {"0": [0]}}')
        self.succeed(run_ranks(1, "train", self.package, job, "--conf", self.path("one.json"), mpi=False))

        def bench(*options):
            result = call(["sh", "-c", 'echo "steps 1" | exec "$0" "$@"', RUN, "bench", self.package, job, "--conf",
                           self.path("one.json"), "--on-request", *options])
            return result.code, result.out

        losses = {}
        for name in ("", "trained.safetensors"):
            code, out = bench(*(["--weights", self.path(name)] if name else []))
            self.assertEqual(code, 0, out)
            losses[name] = json.loads(out.splitlines()[-1])["losses"][0]
        self.assertLess(losses["trained.safetensors"], losses[""])
        code, out = bench("--weights", self.path("none.safetensors"))
        self.assertEqual(code, 1, out)
        self.assertIn("none.safetensors", out)


if __name__ == "__main__":
    unittest.main()
