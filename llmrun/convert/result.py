"""What a conversion came to."""

from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class ConvertResult:
    """`tensors`: how many of each type. `notes` were reported as they came."""

    path: Path
    size_bytes: int
    tensors: dict[str, int]
    seconds: float
    arch: str
    name: str
    n_params: int
    file_type: str
    tokenizer: str
    pre: str
    notes: tuple[str, ...]
