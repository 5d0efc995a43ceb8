"""What this package raises."""
from __future__ import annotations


class Error(RuntimeError):
    """A program failed. The text is what it printed; `code` is its exit code."""

    def __init__(self, text: str, code: int = 1):
        super().__init__(text)
        self.code = code


class ExportError(ValueError):
    """A model, or a pipeline of PyTorch's, that cannot be taken over. The text says what to try."""
