"""The progress of `train`: a line that it rewrites on a terminal, and a few plain lines elsewhere."""
import fcntl
import os
import pty
import re
import signal
import struct
import subprocess
import termios
import threading
import unittest

from support import ENVIRONMENT, RUN, Case, call, export_gpt, gpt, token_job

STEP = r"step +(\d+)/40  loss \d+\.\d{4}  [\d,]+ tokens/s(  bubble \d+ %  memory [\d.]+ \w+)?"
CLEAR = "\r\033[K"
CUT, WRAP = "\033[?7l", "\033[?7h"


def on_terminal(command, columns, kind="xterm", interrupt_at=None):
    """Returns what arrives at a terminal with this many columns, and the exit code. The command gets one
    SIGINT when the text `interrupt_at` has arrived."""
    terminal, end = pty.openpty()
    fcntl.ioctl(end, termios.TIOCSWINSZ, struct.pack("HHHH", 24, columns, 0, 0))
    process = subprocess.Popen([str(word) for word in command], stdin=subprocess.DEVNULL, stdout=end, stderr=end,
                               env={**os.environ, **ENVIRONMENT, "TERM": kind, "NO_COLOR": "",
                                    "PIPEWRIGHT_COLOR": ""})
    os.close(end)
    limit = threading.Timer(600, process.kill)
    limit.start()
    shown = b""
    while True:
        try:
            part = os.read(terminal, 65536)
        except OSError:  # the other end is closed
            break
        if not part:
            break
        shown += part
        if interrupt_at and interrupt_at in shown:
            process.send_signal(signal.SIGINT)
            interrupt_at = None
    os.close(terminal)
    limit.cancel()
    return shown.decode().replace("\r\r\n", "\n").replace("\r\n", "\n"), process.wait()


def seen(shown):
    """Returns the final lines of the terminal."""
    return [line.rsplit(CLEAR, 1)[-1] for line in shown.split("\n")]


class Progress(Case):
    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        export_gpt(gpt(layers=2), cls.folder / "gpt.pt2")
        cls.package = cls.compile("gpt.pt2", "gpt.pkg", "--ranks", "2")

    def job(self, **changes):
        job = {"steps": 40, "log_every": 20, "check_shared": None, "save": "trained.safetensors",
               "optimizer": {"type": "sgd", "lr": 0.0125, "clip_norm": 1.0}, **changes}
        return self.write_job(token_job(**job))

    def commands(self, *options, **changes):
        for start in (("-n", 2), ("--in-process", 2)):
            with self.subTest(start=start[0]):
                yield [RUN, *start, "train", self.package, self.job(**changes), *options]

    def test_a_terminal(self):
        for command in self.commands():
            shown, code = on_terminal(command, 200)
            self.assertEqual(code, 0, shown)
            moving = [line for line, *_ in re.findall(re.escape(CLEAR + CUT) + "(" + STEP + r"[^\r\n]*?)" +
                                                      re.escape(WRAP), shown)]
            self.assertGreater(len(moving), 0, shown)
            for line in moving:
                self.assertRegex(line, f"^{STEP}  lr 0.0125  gradient norm [\\d.e-]+  \\d+:\\d\\d left$")
            steps = [re.match(STEP, line)[1] for line in seen(shown) if re.match(STEP, line)]
            self.assertEqual(steps, ["1", "20", "40"], shown)
            self.assertNotIn("left", "\n".join(seen(shown)))

    def test_a_narrow_terminal(self):
        for command in self.commands():
            shown, code = on_terminal(command, 40)
            self.assertEqual(code, 0, shown)
            moving = re.findall(re.escape(CUT) + "(.*?)" + re.escape(WRAP), shown)
            self.assertGreater(len(moving), 0, shown)
            self.assertEqual({len(line) for line in moving}, {39})

    def test_messages_stand_by_themselves(self):
        for command in self.commands(steps=1000000, log_every=1000000):
            shown, code = on_terminal(command, 200, interrupt_at=b" left")
            self.assertEqual(code, 0, shown)
            lines = seen(shown)
            messages = [line for line in lines if "SIGINT" in line]
            self.assertTrue(messages and all(line.startswith("pipewright-run") for line in messages), shown)
            self.assertTrue(any(re.fullmatch(r"stopped after step \d+, as asked", line) for line in lines), shown)

    def test_colors(self):
        """Of a warning, also of ranks that mpirun starts, and of an error."""
        warning = "\033[1;33mwarning\033[0m: the trained weights are lost"
        for command in self.commands(steps=1, save=None):
            self.assertIn(warning, on_terminal(command, 200)[0])
            self.assertNotIn("\033[1", on_terminal([*command, "--color", "never"], 200)[0])
            self.assertNotIn("\033[1", on_terminal(command, 200, "dumb")[0])
            self.assertNotIn("\033[1", on_terminal(["env", "NO_COLOR=1", *command], 200)[0])
            self.assertNotIn("\033", call(command).out)
            self.assertIn(warning, call([*command, "--color", "always"]).out)
        self.assertIn("\033[1;31mpipewright-run\033[0m: ",
                      on_terminal([RUN, "--in-process", 1, "train", "none", "none"], 200)[0])

    def test_no_terminal(self):
        for command in self.commands():
            result = call(command)
            self.assertEqual((result.code, result.out.count("\033")), (0, 0), result.out)
            self.assertEqual(len(re.findall(f"(?m)^{STEP}$", result.out)), 3, result.out)
        for kind in ("dumb", ""):
            shown, code = on_terminal(command, 100, kind)
            self.assertEqual((code, shown.count("\033")), (0, 0), shown)

    def test_less_and_more(self):
        for command in self.commands("--quiet"):
            result = call(command)
            self.assertEqual(result.code, 0, result.out)
            self.assertNotRegex(result.out, "step|rank|saved")
            shown, code = on_terminal(command, 100)
            self.assertEqual(code, 0, shown)
            self.assertNotRegex(shown, "step|rank|saved|\033")
            # Metrics are complete even then.
            result = call([*command, "--metrics", "/dev/stdout"])
            self.assertEqual((result.code, result.out.count('"seconds"')), (0, 40), result.out)
        for command in self.commands("--verbose"):
            result = call(command)
            self.assertEqual(len(re.findall(f"(?m)^{STEP}$", result.out)), 40, result.out)
            result = call([*command, "--quiet"])
            self.assertEqual(result.code, 2, result.out)


if __name__ == "__main__":
    unittest.main()
