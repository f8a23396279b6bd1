"""Training data: files people have, to flat batches.

renderer = Renderer(model, length=512)
loaded = load("train.jsonl", renderer, splits={"train": 0.9, "validation": 0.1})
batches = Batches(loaded.splits["train"], tokens=2048, rows=6, seed=1)
for at, micro_batches in batches.walk(epochs=3):
    ...
"""

from trivet.train.data.dataset import Dataset, Loaded, Report, load
from trivet.train.data.order import Batches, Position, permutation
from trivet.train.data.pack import UNTRAINED, Batch, pack
from trivet.train.data.render import Example, Renderer
from trivet.train.data.rows import FORMATS, Refused, Row, RowFile
from trivet.train.data.split import Overlap, Splits, normalise, overlap, refuse_overlap

__all__ = [
    "FORMATS",
    "UNTRAINED",
    "Batch",
    "Batches",
    "Dataset",
    "Example",
    "Loaded",
    "Overlap",
    "Position",
    "Refused",
    "Renderer",
    "Report",
    "Row",
    "RowFile",
    "Splits",
    "load",
    "normalise",
    "overlap",
    "pack",
    "permutation",
    "refuse_overlap",
]
