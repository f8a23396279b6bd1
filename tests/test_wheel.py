"""What is installed, and the wheel it comes in."""

import importlib.metadata
import re
import subprocess
import sys
import venv
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
MIB = 1 << 20
LIBRARY = re.compile(r"trivet/lib/libtrivet\.(so|dylib)")


def test_what_is_installed():
    try:
        dist = importlib.metadata.distribution("trivet")
    except importlib.metadata.PackageNotFoundError:
        pytest.skip("trivet is imported from its source folder")
    names = {file.as_posix() for file in dist.files or ()}
    assert {"trivet/__init__.py", "trivet/py.typed", "trivet/include/trivet.h"} <= names
    assert [name for name in names if LIBRARY.fullmatch(name)]
    assert re.search(r"^Tag: py3-none-\w+$", dist.read_text("WHEEL") or "", re.M)
    base = [r for r in dist.requires or () if "extra ==" not in r]
    assert sorted(re.match(r"[\w-]+", r)[0] for r in base) == [
        "jinja2",
        "numpy",
        "rich",
        "safetensors",
        "typer",
    ]


@pytest.fixture(scope="module")
def wheel(tmp_path_factory):
    folder = tmp_path_factory.mktemp("wheel")
    pip = [
        sys.executable,
        "-m",
        "pip",
        "wheel",
        "-q",
        "--no-deps",
        "--no-build-isolation",
        "-w",
        folder,
        ROOT,
    ]
    subprocess.run(pip, check=True)
    return next(folder.iterdir())


@pytest.mark.slow
def test_the_wheel_is_one_small_file_for_every_python(wheel):
    assert re.fullmatch(r"trivet-[\d.]+-py3-none-(?!any)\w+\.whl", wheel.name)
    assert wheel.stat().st_size < 8 * MIB
    names = zipfile.ZipFile(wheel).namelist()
    assert {name.split("/")[0].split("-")[0] for name in names} == {"trivet"}
    assert len([name for name in names if LIBRARY.fullmatch(name)]) == 1
    assert not [name for name in names if name.endswith((".a", ".cc", ".o", ".pyc"))]


@pytest.mark.slow
@pytest.mark.model
def test_the_wheel_runs_with_its_own_dependencies_alone(wheel, smollm2_path, tmp_path):
    venv.create(tmp_path / "env", with_pip=True)
    tool = tmp_path / "env" / "bin"
    subprocess.run([tool / "pip", "install", "-q", wheel], check=True)
    command = [tool / "trivet", "run", smollm2_path, "What is the capital of France?", "--temperature", "0"]
    done = subprocess.run(command, capture_output=True, text=True, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert "Paris" in done.stdout
