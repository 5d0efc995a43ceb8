"""The exceptions that this package raises."""
from __future__ import annotations


class Error(RuntimeError):
    """A program failed. The text is its error message; `code` is its exit code."""

    def __init__(self, text: str, code: int = 1):
        super().__init__(text)
        self.code = code


class ExportError(ValueError):
    """A model or a PyTorch pipeline cannot be exported. The text says what to try."""
