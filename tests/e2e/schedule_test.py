"""Every schedule of the planner, on any placement: the same bits as on one rank."""
import json
import unittest

from support import Case, export_gpt, gpt, pipewright, token_job

STEPS = 2


class Schedules(Case):
    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        export_gpt(gpt(tied=True, dropout=0.1), cls.folder / "gpt.pt2")  # 6 modules
        cls.package = cls.compile("gpt.pt2", "gpt.pkg")
        cls.alone = {}

    def conf(self, modules, ranks):
        path = self.path("conf.json")
        path.write_text(json.dumps({"module_to_stage_map": modules, "stage_to_rank_map":
                                    {str(s): r for s, r in enumerate(ranks)}}))
        return path

    def run_job(self, job, modules, ranks, mpi=False, environment=None):
        count = 1 + max(max(r) for r in ranks)
        return self.train(self.package, job, count, mpi, self.conf(modules, ranks), environment)

    def one_rank(self, microbatches, **changes):
        if microbatches not in self.alone:
            job = token_job(schedule="gpipe", microbatches=microbatches, steps=STEPS, **changes)
            self.alone[microbatches] = self.run_job(job, [0] * 6, [[0]])
        return self.alone[microbatches]

    def check(self, schedule, microbatches, modules, ranks, mpi=False, environment=None,
              **changes):
        job = token_job(schedule=schedule, microbatches=microbatches, steps=STEPS, **changes)
        run = self.run_job(job, modules, ranks, mpi, environment)
        self.assert_same_run(run, self.one_rank(microbatches), f"{schedule}, {microbatches}: ")

    def test_split_backward_on_a_chain(self):
        for microbatches in (1, 2, 4):  # including fewer than ranks
            self.check("zb-h1", microbatches, [0, 0, 1, 1, 2, 2], [[0], [1], [2]])
        self.check("zb1p", 4, [0, 0, 1, 1, 2, 2], [[0], [1], [2]], mpi=True)

    def test_v_placements(self):
        v = [[0], [1], [2], [2], [1], [0]]
        for schedule in ("zbv", "v-half"):
            self.check(schedule, 4, [0, 1, 2, 3, 4, 5], v)
        self.check("dualpipev", 6, [0, 1, 2, 3, 4, 5], v, mpi=True)

    def test_loops(self):
        loop = [[0], [1], [2], [0], [1], [2]]
        self.check("interleaved", 6, [0, 1, 2, 3, 4, 5], loop)
        self.check("bfs", 4, [0, 1, 2, 3, 4, 5], loop, mpi=True,
                   environment={"OMPI_MCA_btl": "tcp,self"})

    def test_uneven_placements(self):
        uneven = [[0], [0], [1], [1], [0]]
        for schedule in ("1f1b", "gpipe"):
            self.check(schedule, 4, [0, 1, 2, 3, 4, 4], uneven)

    def test_a_file_of_the_job(self):
        for name, text in (("plan.csv", "0F0,0F1,0B1,,0B0\n,1F0,1F1,1B1,1B0\n"),
                           ("split.csv", "0F0,0F1,,,,0I1,0W1,0I0,0W0\n,1F0,1F1,1I1,1I0,1W0,1W1\n")):
            self.path(name).write_text(text)
            modules, ranks = [0, 0, 0, 1, 1, 1], [[0], [1]]
            # The second microbatch's backward comes first.
            job = token_job(schedule=name, microbatches=2, steps=STEPS)
            run = self.run_job(job, modules, ranks)
            self.assertEqual(run.losses[0], self.one_rank(2).losses[0])
            self.assert_close_tensors(run.weights, self.one_rank(2).weights, 1e-5)
            self.check(name, 2, modules, ranks, reduce="exact")

    def test_zb_auto(self):
        self.check("zb-auto", 4, [0, 0, 1, 1, 2, 2], [[0], [1], [2]])
        self.check("zb-auto", 4, [0, 1, 2, 3, 4, 5], [[0], [1], [2], [2], [1], [0]])


if __name__ == "__main__":
    unittest.main()
