"""Sessions, pages, threads and processes at their limits: an error with numbers, then on as before."""

import gc
import os
import sys
import threading

import pytest

import tiny_model
import trivet as tv
from trivet.errors import CapacityError
from trivet.generate.native import FULL_SESSIONS


@pytest.fixture
def m(tmp_path):
    return tv.load(tiny_model.write(tmp_path / "m.gguf"), "cpu", threads=2)


def test_too_many_sessions(m):
    held = [m.session() for _ in range(64)]
    with pytest.raises(CapacityError, match="64"):
        m.session()
    held.pop()
    assert m.session().length == 0


def test_too_many_pages(m):
    whole = [1] * tiny_model.CONTEXT
    held = [m.session() for _ in range(FULL_SESSIONS)]
    for session in held:
        m.engine.forward(session, whole, [0])
    late = m.session()
    with pytest.raises(CapacityError, match="pages"):
        m.engine.forward(late, whole, [0])
    assert late.length == 0
    del held, session
    assert m.engine.forward(late, whole, [0]).shape[0] == 1


def test_one_session_from_several_threads(m):
    session = m.session()

    def feed():
        for _ in range(8):
            m.engine.forward(session, [1], [0])

    threads = [threading.Thread(target=feed) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert session.length == 32


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork here")
@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_a_forked_process(m):
    wanted = m.logits([1, 2, 3])
    child = os.fork()
    if child == 0:
        os._exit(0 if (m.logits([1, 2, 3]) == wanted).all() else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert (m.logits([1, 2, 3]) == wanted).all()


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_models_leave_no_files_open(m, tmp_path):
    def use():
        other = tv.load(tmp_path / "m.gguf", "cpu")
        other.logits([1])
        other.tokenizer.encode("hello")

    use()
    gc.collect()
    before = len(os.listdir("/proc/self/fd"))
    for _ in range(20):
        use()
    gc.collect()
    assert len(os.listdir("/proc/self/fd")) <= before
