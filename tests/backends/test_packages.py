"""What is said of a library that is installed and does not start."""

import os
import subprocess
import sys

import pytest

from trivet import backends


@pytest.mark.parametrize(("backend", "library"), [("xla", "JAX"), ("mlx", "MLX")])
@pytest.mark.parametrize(
    ("raised", "said"),
    [
        ("ImportError('libz.so.9: cannot open\\nand more')", "libz.so.9: cannot open"),
        ("RuntimeError('jaxlib 9 does not fit')", "jaxlib 9 does not fit"),
        ("AttributeError('numpy has no float8')", "numpy has no float8"),
        ("AssertionError()", "AssertionError"),
    ],
)
def test_whatever_a_library_raises_is_a_reason(backend, library, raised, said, tmp_path):
    if backends.find(backend).unavailable() is not None:
        pytest.skip(f"{library} is not installed")
    (tmp_path / f"{library.lower()}.py").write_text(f"raise {raised}")
    code = f"from trivet import backends; print(backends.find({backend!r}).unavailable())"
    path = os.pathsep.join([str(tmp_path), *sys.path])
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, env=os.environ | {"PYTHONPATH": path}
    )
    assert (done.stdout, done.stderr) == (f"{library} does not start: {said}\n", "")


FORKED = """
import os, warnings
import numpy as np
from trivet import backends, dtypes, errors
warnings.simplefilter("ignore")
here = backends.find({backend!r})
array = here.from_numpy(np.ones(3, np.float32), dtypes.f32)
if os.fork() == 0:
    for call in (lambda: here.to_numpy(array), lambda: here.from_numpy(np.ones(3, np.float32), dtypes.f32)):
        try:
            call()
        except errors.DeviceError as error:
            print(error, flush=True)
    os._exit(0)
os.wait()
print(here.to_numpy(array).sum())
"""


@pytest.mark.parametrize(("backend", "library"), [("xla", "JAX"), ("mlx", "MLX")])
def test_a_forked_process_is_told_not_kept_waiting(backend, library):
    if backends.find(backend).unavailable() is not None:
        pytest.skip(f"{library} is not installed")
    code = FORKED.format(backend=backend)
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    first, second, last = done.stdout.splitlines()
    assert first == second
    assert first.startswith(f"[device] {library} was in use before this process was forked")
    assert (last, done.stderr) == ("3.0", "")
