"""The C ABI: the library exports what trivet.h declares, structs stand where they stood, bad arguments give a
status, and the example in C builds and answers."""

import ctypes
import re
import shutil
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

import trivet.export
from trivet import _native as core
from trivet import errors

ROOT = Path(__file__).resolve().parent.parent
HEADER = ROOT / "native/include/trivet.h"
COMPILERS = [name for name in ("gcc", "clang", "cc") if shutil.which(name)]


def structs():
    return {
        name: value
        for name, value in vars(core).items()
        if isinstance(value, type) and issubclass(value, ctypes.Structure) and name.startswith("tv_")
    }


def layout_of(struct):
    return [(name, getattr(struct, name).offset, getattr(struct, name).size) for name, _ in struct._fields_]


@pytest.fixture(scope="session")
def exported(tmp_path_factory, smollm2_path):
    path = tmp_path_factory.mktemp("model") / "model.gguf"
    trivet.export.export(smollm2_path, path)
    return path


def test_library_exports_exactly_the_header():
    result = subprocess.run(
        [sys.executable, "scripts/symbols", str(core.library_path())],
        cwd=ROOT, capture_output=True, text=True,
    )  # fmt: skip
    assert result.returncode == 0, result.stdout


def test_every_function_has_a_comment_and_says_since_when():
    text = HEADER.read_text()
    bare = [
        name for comment, name in re.findall(r"(\*/)?\s*\nTV_API [^;]*?\b(tv_\w+)\(", text) if not comment
    ]
    assert bare == []
    assert "/* @since" not in text


@pytest.mark.parametrize("flags", [["-std=c11"], ["-std=c99"], ["-x", "c++", "-std=c++17"]])
@pytest.mark.parametrize("compiler", COMPILERS)
def test_header_compiles_cleanly(compiler, flags):
    command = [compiler, *flags, "-Wall", "-Wextra", "-pedantic", "-Werror", "-fsyntax-only", str(HEADER)]
    subprocess.run(command, check=True, stderr=subprocess.PIPE, text=True)


@pytest.mark.skipif(not COMPILERS, reason="no C compiler")
def test_structs_are_laid_out_as_in_c(tmp_path):
    lines = []
    for name, struct in structs().items():
        lines.append(f'printf("{name} %zu\\n", sizeof({name}));')
        for field, _, _ in layout_of(struct):
            place = f"offsetof({name}, {field}), sizeof((({name}*)0)->{field})"
            lines.append(f'printf("{name}.{field} %zu %zu\\n", {place});')
    source = tmp_path / "layout.c"
    source.write_text(
        '#include <stdio.h>\n#include "trivet.h"\nint main(void) {\n' + "\n".join(lines) + "\n}\n"
    )
    program = tmp_path / "layout"
    subprocess.run([COMPILERS[0], "-I", str(HEADER.parent), str(source), "-o", str(program)], check=True)
    found = subprocess.run([program], capture_output=True, text=True, check=True).stdout
    expected = ""
    for name, struct in structs().items():
        expected += f"{name} {ctypes.sizeof(struct)}\n"
        expected += "".join(f"{name}.{f} {at} {size}\n" for f, at, size in layout_of(struct))
    assert found == expected


def test_structs_stand_where_they_stood():
    """A field of a released version keeps its place; only structs that begin with struct_size may grow."""
    now = structs()
    for kept in sorted((ROOT / "native/abi").glob("*.layout")):
        for line in kept.read_text().splitlines():
            name, field, at, size = line.split()
            assert (field, int(at), int(size)) in layout_of(now[name]), f"{kept.stem}: {line}"
            if not hasattr(now[name], "struct_size"):
                last = layout_of(now[name])[-1]
                assert f"{name} {last[0]} {last[1]} {last[2]}" in kept.read_text(), f"{name} has grown"


def test_numbers_are_those_of_the_python_tables():
    from trivet.dtypes import BY_ID

    for dtype in BY_ID.values():
        info = core.tv_dtype_info(ctypes.sizeof(core.tv_dtype_info))
        core.tv_dtype_get_info(dtype.id, ctypes.byref(info))
        assert (info.name.decode(), info.block, info.nbytes) == (dtype.name, dtype.block, dtype.nbytes)
        assert info.group == dtype.group
        assert getattr(core, f"TV_{dtype.name.upper()}") == dtype.id
    statuses = {
        "INVALID_ARGUMENT": 1,
        "SHAPE": 2,
        "DTYPE": 3,
        "BAD_GGUF": 5,
        "CAPACITY": 9,
        "CHAT_TEMPLATE": 16,
    }
    assert {name: getattr(core, f"TV_{name}") for name in statuses} == statuses
    assert set(errors.BY_STATUS) == set(range(1, 17))


def test_versions():
    assert core.tv_version().decode().count(".") == 2
    assert core.tv_abi_version() >= core.TV_ABI_VERSION
    assert "major << 16 | minor" in HEADER.read_text()


def test_the_machine_is_measured():
    rates = core.tv_cpu_rates(ctypes.sizeof(core.tv_cpu_rates))
    core.tv_cpu_measure(1, ctypes.byref(rates))
    assert 1e8 < rates.read_bytes < 1e13
    assert all(1e8 < rate < 1e16 for rate in (rates.f32, rates.bf16, rates.i8))
    with pytest.raises(errors.InputError, match="n_threads is -1"):
        core.tv_cpu_measure(-1, ctypes.byref(rates))


class TestStructSize:
    """Callers compiled against another minor version."""

    def test_smaller_info_is_filled_as_far_as_it_goes(self):
        info = core.tv_cpu_info(core.tv_cpu_info.threads.offset)
        info.threads = -7
        core.tv_cpu_get_info(ctypes.byref(info))
        assert info.isa
        assert info.threads == -7

    def test_larger_info_keeps_its_size_and_its_tail(self):
        class Newer(ctypes.Structure):
            _fields_ = [("known", core.tv_cpu_info), ("later", ctypes.c_int64)]

        newer = Newer()
        newer.known.struct_size, newer.later = ctypes.sizeof(Newer), 5
        core.tv_cpu_get_info(ctypes.cast(ctypes.byref(newer), ctypes.POINTER(core.tv_cpu_info)))
        assert newer.known.threads >= 1
        assert newer.later == 5
        assert newer.known.struct_size == ctypes.sizeof(Newer)

    def test_no_size_is_refused(self):
        with pytest.raises(errors.InputError, match="struct_size is 0"):
            core.tv_cpu_get_info(ctypes.byref(core.tv_cpu_info()))

    def test_an_option_this_library_does_not_know_is_not_ignored(self):
        class Newer(ctypes.Structure):
            _fields_ = [("known", core.tv_engine_options), ("later", ctypes.c_int64)]

        newer = Newer()
        newer.known.struct_size, newer.later = ctypes.sizeof(Newer), 5
        model = ctypes.c_void_p()
        core.tv_model_create(ctypes.byref(model))
        options = ctypes.cast(ctypes.byref(newer), ctypes.POINTER(core.tv_engine_options))
        with pytest.raises(errors.UnsupportedError, match="newer than this library"):
            core.tv_engine_create(model, None, options, ctypes.byref(ctypes.c_void_p()))
        newer.later = 0
        with pytest.raises(errors.ModelError, match="carries no plan"):
            core.tv_engine_create(model, None, options, ctypes.byref(ctypes.c_void_p()))
        core.tv_model_free(model)


def test_kernel_supports():
    supported = ctypes.c_int32(-1)
    two = (ctypes.c_int32 * 2)(core.TV_F32, core.TV_F32)
    one = (ctypes.c_int32 * 1)(core.TV_F32)
    core.tv_kernel_supports(b"add", two, 2, one, 1, ctypes.byref(supported))
    assert supported.value == 1
    core.tv_kernel_supports(b"nonesuch", two, 2, one, 1, ctypes.byref(supported))
    assert supported.value == 0
    with pytest.raises(errors.DTypeError):
        core.tv_kernel_supports(b"add", (ctypes.c_int32 * 2)(0, 99), 2, one, 1, ctypes.byref(supported))


def test_an_older_library_is_refused(monkeypatch):
    monkeypatch.setenv("TRIVET_LIBRARY", "/nonexistent/libtrivet.so")
    core.library.cache_clear()
    try:
        with pytest.raises(errors.DeviceUnavailable, match="cannot load"):
            core.tv_version()
    finally:
        monkeypatch.undo()
        core.library.cache_clear()


NULLS = textwrap.dedent("""
    # Every function with NULL and 0 for everything, then, on live handles, with each pointer NULL in turn.
    import ctypes, importlib.util, sys
    from trivet import _native as core

    spec = importlib.util.spec_from_file_location("gen_native", sys.argv[1])
    gen = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(gen)
    model_path = sys.argv[2].encode()
    library, header = core.library(), gen.HEADER.read_text()
    live = {}

    def made(name, *arguments):
        handle = ctypes.c_void_p()
        getattr(core, name)(*arguments, ctypes.byref(handle))
        live.setdefault(next(k for k in KINDS if name.startswith(k)), handle)
        return handle

    KINDS = ("tv_tokenizer_stream", "tv_tokenizer", "tv_plan", "tv_model", "tv_program", "tv_engine",
             "tv_session", "tv_sampler", "tv_chat")
    model = made("tv_model_open", model_path)
    plan = made("tv_plan_load", (data := open(sys.argv[3], "rb").read()), len(data))
    dims = (core.tv_dim * 1)(core.tv_dim(b"N", 4))
    options = core.tv_program_options(ctypes.sizeof(core.tv_program_options), 1, dims, 1)
    made("tv_program_create", plan, model, ctypes.byref(options))
    small = core.tv_engine_options(ctypes.sizeof(core.tv_engine_options), 1, 4, 128, 8)
    made("tv_session_create", made("tv_engine_create", model, plan, ctypes.byref(small)))
    made("tv_tokenizer_stream_open", made("tv_tokenizer_from_model", model), 0)
    made("tv_chat_open", live["tv_tokenizer"])
    made("tv_sampler_open", None)
    assert live.keys() == set(KINDS)
    calls = refused = 0

    def call(name, result, arguments):
        global calls, refused
        status = getattr(library, name)(*arguments)
        calls += 1
        if result == "tv_status" and status:
            refused += 1
            assert 0 < status <= 16 and core.tv_last_error(), name
        return status

    def value(kind):
        words = kind.replace("const", " ").replace("*", " * ").split()
        base, stars = words[0], words.count("*")
        if stars == 0:
            return 0
        if base == "char" and stars == 1 and "const" in kind:
            return b"x"
        if base in live and stars == 1:
            return live[base]
        if stars == 1 and hasattr(core, base) and issubclass(getattr(core, base), ctypes.Structure):
            struct = getattr(core, base)()
            if hasattr(struct, "struct_size"):
                struct.struct_size = ctypes.sizeof(struct)
            return ctypes.byref(struct)
        return ctypes.byref((ctypes.c_void_p * 64)()) if stars == 2 and base in live else (
            ctypes.create_string_buffer(1 << 16))

    skip = {"tv_model_open", "tv_tokenizer_open"}  # (b"x" is no file; those that succeed would leak)
    for result, name, arguments, _ in gen.functions(header):
        nothing = [0 if "*" not in kind else None for kind, _ in arguments]
        status = call(name, result, nothing)
        if result == "tv_status" and arguments:
            assert (status == 0) == name.endswith("_free"), (name, status)
        if name.endswith("_free") or name in skip:
            continue
        for i, (kind, _) in enumerate(arguments):
            if "*" in kind:
                try:
                    call(name, result, [None if i == j else value(k) for j, (k, _) in enumerate(arguments)])
                except ctypes.ArgumentError:
                    pass  # ctypes refuses a handle's buffer for a typed pointer
    for kind in KINDS:
        getattr(core, kind + "_free")(live[kind])
    print(calls, refused)
""")


@pytest.mark.model
def test_null_arguments_give_a_status(tmp_path, exported):
    plan = tmp_path / "plan"
    plan.write_bytes(plan_of(exported))
    script = tmp_path / "nulls.py"
    script.write_text(NULLS)
    result = subprocess.run(
        [sys.executable, script, ROOT / "scripts/gen_native.py", exported, plan],
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert result.returncode == 0, result.stderr
    calls, refused = map(int, result.stdout.split())
    assert calls > 150
    assert refused > 120


def plan_of(path):
    from trivet.formats.gguf import GGUFFile

    return bytes(bytearray(GGUFFile.open(path).metadata["trivet.plan.serve"]))


@pytest.fixture(scope="session")
def example(tmp_path_factory):
    """Builds a program of examples/c with a plain C compiler."""
    if not COMPILERS:
        pytest.skip("no C compiler")

    def build(name):
        library = core.library_path().resolve()
        program = tmp_path_factory.mktemp("c") / name
        command = [
            COMPILERS[0], "-std=c11", "-O2", "-Wall", "-Wextra", "-pedantic", "-Werror", "-I",
            str(HEADER.parent), str(ROOT / f"examples/c/{name}.c"), str(library),
            f"-Wl,-rpath,{library.parent}", "-o", str(program),
        ]  # fmt: skip
        subprocess.run(command, check=True)
        return program

    return build


@pytest.fixture(scope="session")
def chat_program(example):
    return example("chat")


@pytest.mark.model
def test_batches_in_c_have_the_bits_of_one_alone(example, exported):
    texts = [
        "The capital of France is",
        "Once upon a time, in a village by the sea, there lived an old man who",
        "def fibonacci(n):",
        "0 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16 17 18 19 20 21 22 23 24 25 26 27 28 29 30",
        "Hello",
    ]
    program, said = example("batch"), set()
    for threads in ("1", "2", "3"):
        result = subprocess.run(
            [program, exported, threads, *texts], capture_output=True, text=True, timeout=120
        )
        assert result.returncode == 0, result.stderr
        said.add(result.stdout)
    (ids,) = said
    assert ids.split()[0] == "7042"  # " Paris"


@pytest.mark.model
class TestChatInC:
    def test_answers(self, chat_program, exported):
        command = [chat_program, "-t", "0", "-n", "24", exported, "What is the capital of France?"]
        result = subprocess.run(command, capture_output=True, text=True, timeout=120)
        assert result.returncode == 0, result.stderr
        assert "Paris" in result.stdout

    def test_holds_a_conversation(self, chat_program, exported):
        lines = "What is the capital of France?\n\nAnd of Italy?\n"
        command = [chat_program, "-t", "0", "-n", "24", exported]
        result = subprocess.run(command, input=lines, capture_output=True, text=True, timeout=120)
        assert result.returncode == 0, result.stderr
        assert "Paris" in result.stdout
        assert "Rome" in result.stdout

    def test_says_what_is_wrong(self, chat_program, smollm2_path, tmp_path):
        def run(*arguments):
            return subprocess.run([chat_program, *arguments], capture_output=True, text=True, timeout=60)

        assert run().returncode == 2
        assert run("-x", "1", "a").returncode == 2
        absent = run(tmp_path / "none.gguf", "hi")
        assert absent.returncode == 1
        assert "none.gguf" in absent.stderr
        plain = run(smollm2_path, "hi")  # not exported: no chat format, no plan
        assert plain.returncode == 1
        assert "trivet export" in plain.stderr
