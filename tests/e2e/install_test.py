"""Other CMake projects can use an installed pipewright, and plain CMake builds it."""
import os
import shutil
import unittest

from support import BUILD, ROOT, Case, call

PROJECT = """
cmake_minimum_required(VERSION 3.22)
project(user LANGUAGES CXX)
find_package(pipewright REQUIRED)
add_executable(user user.cc)
target_link_libraries(user PRIVATE pipewright::plan)
"""
SOURCE = """
#include <iostream>
#include "plan/conf.h"
int main() { std::cout << pipewright::WriteConf(pipewright::GroupModules(3, 2)); }
"""


def cached(name):
    """A variable of the build's CMake cache."""
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
        torch = cached("CMAKE_PREFIX_PATH")
        self.succeed(call(["cmake", "-S", user, "-B", user / "build", "-G", "Ninja",
                           f"-DCMAKE_PREFIX_PATH={prefix};{torch}"]))
        self.succeed(call(["cmake", "--build", user / "build"]))
        result = self.succeed(call([user / "build/user"]))
        self.assertIn("module_to_stage_map", result.out)

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


if __name__ == "__main__":
    unittest.main()
