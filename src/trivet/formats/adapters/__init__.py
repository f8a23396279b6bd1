"""LoRA adapters as files: PEFT folders, MLX folders, GGUF adapter files.

Each format reads to a `Stored` and writes one: pairs of matrices by the names the file uses, with the
settings that say how they are scaled. Which weight of which model a name means is not known here.
"""

from trivet.formats.adapters import gguf, mlx, peft
from trivet.formats.adapters.stored import Pair, Stored

__all__ = ["Pair", "Stored", "gguf", "mlx", "peft"]
