"""The devices that tests of whole models run on.

TRIVET_TEST_DEVICES names more, by commas: "xla-cpu" is JAX's client for processors, "mlx-cpu" MLX's. People
cannot ask for those by name, for they have the cpu device.
"""

import os

from trivet import runtime

EXTRA = [name for name in os.environ.get("TRIVET_TEST_DEVICES", "").split(",") if name]
runtime.BACKENDS.update({name: name.removesuffix("-cpu") for name in EXTRA})
DEVICES = ["cpu", "reference", *EXTRA]
