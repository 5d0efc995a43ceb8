"""Other CMake projects can use an installed pipewright, and plain CMake builds it."""
import os
import re
import shutil
import unittest

import torch

from support import BUILD, LENGTH, ROOT, Case, call, export_gpt, gpt

PROJECT = """
cmake_minimum_required(VERSION 3.22)
project(user LANGUAGES CXX)
find_package(pipewright REQUIRED)
add_executable(user user.cc)
target_link_libraries(user PRIVATE pipewright::plan)
add_library(headers OBJECT headers.cc)
target_link_libraries(headers PRIVATE pipewright::compile pipewright::runtime pipewright::tensors)
"""
SOURCE = """
#include <iostream>
#include "formats/conf.h"
int main() { std::cout << pipewright::WriteConf(pipewright::GroupModules(3, 2)); }
"""


def cached(name):
    """Returns a variable of the build's CMake cache."""
    for line in (BUILD / "CMakeCache.txt").read_text().splitlines():
        if line.startswith(name + ":"):
            return line.split("=", 1)[1]
    return ""


class Install(Case):
    def test_a_project_finds_the_installed_libraries(self):
        prefix, user = self.path("prefix"), self.path("user")
        self.succeed(call(["cmake", "--install", BUILD, "--prefix", prefix]))
        for program in ("pipewright", "pipewright-run"):
            self.succeed(call([prefix / "bin" / program, "--version"]))
        user.mkdir()
        (user / "CMakeLists.txt").write_text(PROJECT)
        (user / "user.cc").write_text(SOURCE)
        headers = prefix / "include/pipewright"  # all of them in one file
        together = [f'#include "{path.relative_to(headers)}"\n' for path in sorted(headers.rglob("*.h"))]
        self.assertGreater(len(together), 60)
        (user / "headers.cc").write_text("".join(together))
        torch = cached("CMAKE_PREFIX_PATH")
        self.succeed(call(["cmake", "-S", user, "-B", user / "build", "-G", "Ninja",
                           f"-DCMAKE_PREFIX_PATH={prefix};{torch}"]))
        self.succeed(call(["cmake", "--build", user / "build"]))
        result = self.succeed(call([user / "build/user"]))
        self.assertIn("module_to_stage_map", result.out)

    @unittest.skipUnless(os.environ.get("PIPEWRIGHT_LONG"), "set PIPEWRIGHT_LONG=1 to run it")
    def test_the_library_example_trains_as_the_program_does(self):
        prefix, build = self.path("library_prefix"), self.path("library_build")
        self.succeed(call(["cmake", "--install", BUILD, "--prefix", prefix]))
        self.succeed(call(["cmake", "-S", prefix / "share/pipewright/examples/library", "-B", build,
                           "-G", "Ninja", "-DCMAKE_BUILD_TYPE=Release",
                           f"-DCMAKE_PREFIX_PATH={prefix};{cached('CMAKE_PREFIX_PATH')}"]))
        self.succeed(call(["cmake", "--build", build]))
        model = gpt(layers=3, tied=False)
        export_gpt(model, self.path("gpt.pt2"))
        package = self.compile("gpt.pt2", "gpt.pkg", "--ranks", "3")
        tokens = (torch.arange(2)[:, None] * 64 + torch.arange(LENGTH)) % 256
        loss = torch.nn.functional.cross_entropy(model(tokens).flatten(0, 1),
                                                 (tokens + 1).flatten() % 256)
        result = self.succeed(call([build / "train_step", package]))
        self.assertIn(f"local: loss {loss.item():.6f}", result.out)
        result = self.succeed(call(["mpirun", "-n", 3, build / "train_step", package]))
        self.assertIn(f"step 0: first loss {loss.item():.6f}", result.out)
        self.assertIn("evaluated: loss ", result.out)
        self.assertEqual(len(re.findall(r"^rank [012]: ", result.out, re.M)), 3)

    @unittest.skipUnless(os.environ.get("PIPEWRIGHT_LONG"), "set PIPEWRIGHT_LONG=1 to run it")
    def test_plain_cmake_builds_a_clone(self):
        clone, build = self.path("clone"), self.path("build")
        self.succeed(call(["git", "clone", "-q", ROOT, clone]))
        self.succeed(call(["cmake", "-S", clone, "-B", build, "-G", "Ninja",
                           f"-DCMAKE_PREFIX_PATH={cached('CMAKE_PREFIX_PATH')}",
                           "-DPIPEWRIGHT_TESTS=OFF"]))
        self.succeed(call(["cmake", "--build", build, "-j", "2"], timeout=3000))
        self.succeed(call(["cmake", "--install", build, "--prefix", self.path("clean")]))
        self.assertTrue(shutil.which(self.path("clean") / "bin/pipewright-run"))

    @unittest.skipUnless(os.environ.get("PIPEWRIGHT_LONG"), "set PIPEWRIGHT_LONG=1 to run it")
    def test_the_debian_package_brings_its_libtorch(self):
        self.succeed(call(["cpack", "--config", BUILD / "CPackConfig.cmake", "-B", self.path("deb")],
                          timeout=1800))
        (package,) = self.path("deb").glob("*.deb")
        root = self.path("root")
        self.succeed(call(["dpkg-deb", "-x", package, root]))
        loaded = self.succeed(call(["ldd", root / "usr/bin/pipewright-run"])).out
        for library in ("libtorch_cpu.so", "libc10.so"):
            self.assertIn(f"{library} => {root}/usr/bin/../lib/pipewright/{library}", loaded)
        export_gpt(gpt(layers=3, tied=False), self.path("gpt.pt2"))
        self.succeed(call([root / "usr/bin/pipewright", "compile", self.path("gpt.pt2"), "-o",
                           self.path("gpt.pkg"), "--ranks", "3"]))

    @unittest.skipUnless(os.environ.get("PIPEWRIGHT_LONG"), "set PIPEWRIGHT_LONG=1 to run it")
    def test_pip_installs_programs_and_package(self):
        clone, here = self.path("sources"), self.path("environment")
        self.succeed(call(["git", "clone", "-q", ROOT, clone]))
        # A copy of this environment, with torch where the programs look for it.
        self.succeed(call(["cp", "-a", "--reflink=auto", ROOT / ".venv", here]))
        python = here / "bin/python"
        self.succeed(call([python, "-m", "pip", "install", "-q", "scikit-build-core"], timeout=600))
        self.succeed(call([python, "-m", "pip", "install", "-q", "--no-build-isolation", clone],
                          timeout=3000))
        script = ("import torch, pipewright as pw\n"
                  "model = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.Linear(4, 2))\n"
                  "x = torch.rand(3, 4)\n"
                  "package = pw.compile(model, 'small.pkg', args=(x,), split=['1'])\n"
                  "out = pw.infer(package, {'input': x})\n"
                  "assert torch.equal(list(out.values())[0], model(x))\n"
                  "print(package.path, pw.programs.find('pipewright'))")
        result = self.succeed(call([python, "-c", script], cwd=self.path("")))
        self.assertIn(f"{here}/lib", result.out)
        self.succeed(call([here / "bin/pipewright", "version"]))


if __name__ == "__main__":
    unittest.main()
