"""pipewright report in a headless browser: the pages load without errors, contain what they should,
and respond to clicks. Debian packages: chromium and chromium-driver."""
import json
import pathlib
import shutil
import socket
import subprocess
import tempfile
import time
import unittest
import urllib.error
import urllib.request

from report_test import PACKAGE, Report

CODE = """class {0}(Module):
  __parameters__ = ["{1}.weight", "{1}.bias", ]
  __buffers__ = []
  training : bool
  __annotations__["{1}.weight"] = Tensor
  __annotations__["{1}.bias"] = Tensor
  def forward(self: __torch__.{0},
    x: Tensor) -> Tensor:
    weight = getattr(self, "{1}.weight")
    bias = getattr(self, "{1}.bias")
    return torch.linear(x, weight, bias)
"""
MISSING = [name for name in ("chromium", "chromedriver") if not shutil.which(name)]


class Browser:
    """chromedriver over its HTTP interface."""

    def __init__(self, folder):
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            port = probe.getsockname()[1]
        self.driver = subprocess.Popen(["chromedriver", f"--port={port}"],
                                       stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        self.url = f"http://127.0.0.1:{port}"
        self.wait_for_driver()
        flags = ["--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage",
                 "--window-size=1400,1000", f"--user-data-dir={folder}/profile"]
        made = self.ask("POST", "/session", {"capabilities": {"alwaysMatch": {
            "goog:chromeOptions": {"args": flags}, "goog:loggingPrefs": {"browser": "ALL"}}}})
        self.url += "/session/" + made["sessionId"]

    def wait_for_driver(self):
        for _ in range(600):
            try:
                return self.ask("GET", "/status")
            except (urllib.error.URLError, ConnectionError):
                time.sleep(0.1)
        raise RuntimeError("chromedriver does not answer")

    def ask(self, method, path, body=None):
        data = None if body is None else json.dumps(body).encode()
        request = urllib.request.Request(self.url + path, data, {"Content-Type": "application/json"},
                                         method=method)
        try:
            with urllib.request.urlopen(request, timeout=600) as answer:
                return json.load(answer)["value"]
        except urllib.error.HTTPError as error:
            raise AssertionError(error.read().decode()) from error

    def open(self, path):
        self.ask("POST", "/url", {"url": pathlib.Path(path).as_uri()})

    def run(self, script, *arguments):
        return self.ask("POST", "/execute/sync", {"script": script, "args": list(arguments)})

    def count(self, selector):
        return self.run("return document.querySelectorAll(arguments[0]).length", selector)

    def texts(self, selector):
        return self.run("return [...document.querySelectorAll(arguments[0])].map(e => e.textContent)",
                        selector)

    def find(self, selector):
        found = self.ask("POST", "/element", {"using": "css selector", "value": selector})
        return "/element/" + next(iter(found.values()))

    def click(self, selector):
        self.ask("POST", self.find(selector) + "/click", {})

    def type(self, selector, text):
        self.ask("POST", self.find(selector) + "/value", {"text": text})

    def errors(self):
        return [entry["message"] for entry in self.ask("POST", "/se/log", {"type": "browser"})]

    def close(self):
        try:
            self.ask("DELETE", "", None)
        finally:
            self.driver.terminate()
            self.driver.wait()


def write_package(folder, modules):
    """Writes a package of modules in a row, each with two weights, with conf and profile."""
    manifest = json.loads((PACKAGE / "manifest.json").read_text())
    value = {"dtype": "float32", "shape": ["s52", 64], "gradient": True}
    manifest.update(inputs=["v0"], outputs=[f"v{modules}"], values=[], modules=[])
    (folder / "modules").mkdir(parents=True)
    (folder / "conf").mkdir()
    for m in range(modules + 1):
        manifest["values"].append({"name": f"v{m}", **value, "gradient": m > 0,
                                   "from": m - 1 if m else "input", "to": [m] if m < modules else []})
    nodes = []
    for m in range(modules):
        held = [{"name": f"layers.{m}.{name}", "kind": "parameter", "dtype": "float32",
                 "shape": shape, "requires_grad": True}
                for name, shape in (("weight", [64, 64]), ("bias", [64]))]
        code = f"modules/module{m}.py"
        (folder / code).write_text(CODE.format(f"Module{m}", f"layers.{m}"))
        manifest["modules"].append({
            "name": f"module{m}", "code": code, "weights": f"weights/module{m}.safetensors",
            "code_hash": "0", "covers": [f"layers.{m}"], "inputs": [f"v{m}"],
            "outputs": [f"v{m + 1}"], "held": held})
        time_of = lambda seconds: {"median": seconds, "spread": 0}
        nodes.append({"name": f"module{m}", "description": f"layers.{m}", "module": m, "rank": 0,
                      "forward": time_of(1e-3), "backward": time_of(2e-3),
                      "input_gradient": time_of(1e-3), "weight_gradient": time_of(1e-3),
                      "kept_bytes": 4096, "kept_for_weight_bytes": 4096, "peak_bytes": 65536,
                      "parameter_bytes": 16640, "trained_bytes": 16640, "buffer_bytes": 0,
                      "weights": [w["name"] for w in held]})
    (folder / "manifest.json").write_text(json.dumps(manifest))
    (folder / "conf/mp_conf.json").write_text(json.dumps({
        "module_to_stage_map": list(range(modules)),
        "stage_to_rank_map": {str(m): [m] for m in range(modules)}}))
    values = [{"name": f"v{m}", "producer": m - 1, "consumers": [m] if m < modules else [],
               "bytes": 4096, "gradient": m > 0, "kept": True} for m in range(modules + 1)]
    (folder / "profile.json").write_text(json.dumps({
        "pipewright_profile": 1, "package": "net.pkg", "microbatch": 1, "repeat": 3, "threads": 1,
        "fine": False, "nodes": nodes, "values": values, "shared": [], "links": []}))


class PageInputs(Report):
    def write_job(self, microbatches, steps=20):
        job = json.loads((PACKAGE.parent / "job.json").read_text())
        job.update(microbatches=microbatches, steps=steps)
        (self.folder / "job.json").write_text(json.dumps(job))

    def write_inputs(self, ranks, microbatches):
        write_package(self.folder / "net.pkg", ranks)
        self.write_job(microbatches)
        self.run_command("plan", "net.pkg", "job.json", "-o", "plan.csv")
        self.write_costs(1, F=1000, I=1000, W=1000)
        self.run_command("simulate", "plan.csv", "--costs", "costs.json", "--trace", "trace.json")
        (self.folder / "run.jsonl").write_text(
            "".join(json.dumps({"step": s, "loss": 1 / s}) + "\n" for s in range(1, 21)))

    def report(self, *more):
        self.run_command("report", "net.pkg", "-o", "report.html", *more)
        return (self.folder / "report.html").read_text()

    def data(self, page):
        start = page.index('id="data">') + len('id="data">')
        return json.loads(page[start:page.index("</script>", start)])


class PageTest(PageInputs):
    """Tests without a browser."""

    def test_what_is_missing_is_named(self):
        write_package(self.folder / "net.pkg", 2)
        (self.folder / "net.pkg/profile.json").unlink()
        missing = "\n".join(self.data(self.report())["missing"])
        for text in ("no profile", "pipewright profile", "no predicted timeline and memory", "--job JOB",
                     "no measured timeline", "pipewright-run bench net.pkg JOB --trace FILE",
                     "no training curves", "--metrics FILE"):
            self.assertIn(text, missing)

    def test_trace_of_another_package_and_unfinished_metrics(self):
        self.write_inputs(2, 3)
        shutil.rmtree(self.folder / "net.pkg")
        write_package(self.folder / "net.pkg", 3)
        (self.folder / "run.jsonl").write_text('{"step": 7, "loss": 1}\n')
        (self.folder / "cut.jsonl").write_text('{"step": 7, "loss": 1}\n{"st')
        data = self.data(self.report("--job", "job.json", "--trace", "trace.json", "--metrics",
                                     "run.jsonl", "--metrics", "cut.jsonl"))
        self.assertEqual([t["name"] for t in data["timelines"]], ["predicted"])
        missing = "\n".join(data["missing"])
        for text in ("trace.json has 2 ranks and 2 stages, net.pkg/conf/mp_conf.json has 3 and 3",
                     "run.jsonl ends at step 7 of the job's 20",
                     "cut.jsonl ends within a line: the run is still in progress"):
            self.assertIn(text, missing)

    def test_hostile_names_stay_text(self):
        write_package(self.folder / "net.pkg", 2)
        manifest = self.folder / "net.pkg/manifest.json"
        hostile = "</script><b>&\"'"
        manifest.write_text(manifest.read_text().replace("layers.1", json.dumps(hostile)[1:-1]))
        (self.folder / "net.pkg/profile.json").unlink()
        page = self.report()
        self.assertNotIn("</script><b>", page)
        names = [w["name"] for w in self.data(page)["package"]["modules"][1]["weights"]]
        self.assertIn(hostile + ".weight", names)

    def test_memory_is_the_picture_of_plot(self):
        self.write_inputs(2, 3)
        page = self.report("--job", "job.json", "--memory", "1MiB")
        picture = self.run_command("plot", "memory", "net.pkg", "--job", "job.json", "--memory",
                                   "1MiB")
        self.assertIn(picture, page)
        (self.folder / "net.pkg/profile.json").unlink()
        self.run_command("plot", "memory", "net.pkg", "--job", "job.json", code=1)
        self.run_command("plot", "timeline", "net.pkg", code=2)

    def test_only_its_own_pages_are_replaced(self):
        write_package(self.folder / "net.pkg", 2)
        self.report()
        self.report()
        (self.folder / "report.html").write_text("mine")
        self.run_command("report", "net.pkg", "-o", "report.html", code=1)
        self.report("--force")
        self.run_command("report", "net.pkg", "-o", "net.pkg/manifest.json", "--force", code=1)


@unittest.skipIf(MISSING, f"no {' and no '.join(MISSING)}")
class BrowserTest(PageInputs):
    @classmethod
    def setUpClass(cls):
        folder = tempfile.TemporaryDirectory()
        cls.addClassCleanup(folder.cleanup)
        cls.browser = Browser(folder.name)
        cls.addClassCleanup(cls.browser.close)

    def open(self, *more):
        page = self.report(*more)
        self.browser.open(self.folder / "report.html")
        self.assertEqual(self.browser.errors(), [])
        return page

    def open_all(self):
        return self.open("--job", "job.json", "--trace", "trace.json", "--metrics", "run.jsonl",
                         "--memory", "1MiB")

    def test_two_ranks(self):
        self.write_inputs(2, 3)
        self.open_all()
        b = self.browser
        # Three microbatches on two ranks, predicted and measured.
        self.assertEqual((b.count("#bars rect.F"), b.count("#bars rect.B")), (12, 12))
        self.assertEqual((b.count("#bars rect.idle"), b.count("#memory path.held")), (4, 2))
        self.assertEqual((b.count("#cut rect.s0"), b.count("#curves path.c")), (1, 2))
        self.assertEqual(b.texts("section:not([hidden]) h2")[:5],
                         ["What it is", "The cut", "The timeline of a step",
                          "Memory of each rank over the microseconds of a step, predicted",
                          "Training curves"])

    def test_tables_sort_and_search(self):
        self.write_inputs(2, 3)
        self.open_all()
        b = self.browser
        names = "#parameters tbody tr td:first-child"
        self.assertEqual(b.count(names), 4)
        b.click("#parameters th:nth-child(5) button")  # elements
        self.assertEqual(b.texts(names)[0], "layers.0.bias")
        b.click("#parameters th:nth-child(5) button")
        self.assertEqual(b.texts(names)[0], "layers.0.weight")
        b.type("#parameters input", "layers.1 BIAS")
        self.assertEqual(b.texts("#parameters tbody td"),
                         ["layers.1.bias", "parameter", "float32", "[64]", "64", "256 B", "module1",
                          "1", "1", "weights/module1.safetensors"])

    def test_zoom_changes_the_axis(self):
        self.write_inputs(2, 3)
        self.open_all()
        b = self.browser
        before, whole = b.texts("#axis text"), b.texts("#window")
        b.click("#in")
        self.assertNotEqual(b.texts("#axis text"), before)
        self.assertLess(b.count("#bars rect.F"), 12)
        b.click("#all")
        self.assertEqual((b.texts("#axis text"), b.texts("#window")), (before, whole))

    def test_hover_tells_the_action(self):
        self.write_inputs(2, 3)
        self.open_all()
        told = self.browser.run("""
            const box = document.querySelector("#bars rect.B").getBoundingClientRect();
            document.querySelector("#bars").dispatchEvent(new PointerEvent("pointermove", {
                clientX: box.x + box.width / 2, clientY: box.y + box.height / 2}));
            return document.querySelector("#tip").textContent""")
        self.assertEqual(told, "rank 0 predicted, 0B0 (backward)\n4 ms to 6 ms: 2 ms")

    def test_hostile_names_are_shown(self):
        write_package(self.folder / "net.pkg", 2)
        manifest = self.folder / "net.pkg/manifest.json"
        manifest.write_text(manifest.read_text().replace("layers.1", "</script><b>x"))
        (self.folder / "net.pkg/profile.json").unlink()
        self.open()
        self.assertEqual(self.browser.count("b"), 0)
        self.assertIn("</script><b>x.weight", self.browser.texts("#parameters td"))

    def test_64_ranks_and_1024_microbatches(self):
        self.write_inputs(64, 1024)
        start = time.time()
        page = self.open_all()
        print(f"{len(page) / 1e6:.1f} MB, written and opened in {time.time() - start:.1f} s")
        self.assertLess(len(page), 20_000_000)
        b = self.browser
        self.assertEqual((b.count("#bars rect.idle"), b.count("#memory path.held")), (128, 64))
        self.assertEqual(b.count("#bars rect.F"), 0)  # together: a path a kind and row
        self.assertEqual(b.count("#bars path.B"), 128)
        self.assertEqual(b.count("#modules tbody tr"), 64)
        for _ in range(10):
            b.click("#in")
        self.assertGreater(b.count("#bars rect.F") + b.count("#bars rect.B"), 64)
        self.assertEqual(b.errors(), [])


if __name__ == "__main__":
    unittest.main()
