"""The exceptions that this package raises."""
from __future__ import annotations


class Error(RuntimeError):
    """A program failed. The text is its error message; `code` is its exit code."""

    def __init__(self, text: str, code: int = 1):
        super().__init__(text)
        self.code = code


class MissingPackage(Error, FileNotFoundError):
    """A path is not a package. Also a FileNotFoundError, as of a file that is opened."""


class ExportError(ValueError):
    """A model or a PyTorch pipeline cannot be exported. The text says what to try."""
