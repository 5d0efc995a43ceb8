"""Pipeline parallelism from Python: a thin layer over the programs pipewright and pipewright-run.

    import pipewright as pw

    pw.export(model, (x,), "model.pt2", split="equal:4")
    package = pw.compile("model.pt2")
    run = pw.train(package, job, ranks=2)
    run.wait()
    pw.load_into(model, "trained.safetensors")

Every function writes files, runs one of the programs, and reads what it wrote; what a program
prints as an error is raised as `pipewright.Error`. docs/reference/python.md describes all of it.
"""
from pipewright.programs import check_torch, version

check_torch()

from pipewright.data import write_data
from pipewright.errors import Error, ExportError
from pipewright.exporting import export
from pipewright.job import Job
from pipewright.package import Module, Package, Stage, compile
from pipewright.pipelining import from_torch_pipelining
from pipewright.runs import Run, infer, train
from pipewright.weights import load_into

__all__ = ["Error", "ExportError", "Job", "Module", "Package", "Run", "Stage", "compile", "export",
           "from_torch_pipelining", "infer", "load_into", "train", "version", "write_data"]
