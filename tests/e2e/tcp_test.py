"""The same over TCP: shared memory hides effects of synchronous or late messages."""
import unittest

from support import Case, export_gpt, gpt, token_job


class Tcp(Case):
    def test_tcp_gives_the_same_bits(self):
        export_gpt(gpt(tied=True), self.path("gpt.pt2"))
        package = self.compile("gpt.pt2", "gpt.pkg", "--ranks", "3")
        for schedule in ("gpipe", "1f1b"):
            job = token_job(schedule=schedule)
            self.assert_same_run(
                self.train(package, job, 3, environment={"OMPI_MCA_btl": "tcp,self"}),
                self.train(package, job, 3, mpi=False))


if __name__ == "__main__":
    unittest.main()
