"""`trivet chat` on a terminal: what Ctrl-C does, and the commands."""

import os
import sys

import pytest

pexpect = pytest.importorskip("pexpect")


@pytest.fixture
def chat(smollm2_path, tmp_path):
    """A chat whose prompt has appeared."""
    command = ["-m", "trivet.cli.main", "chat", str(smollm2_path), "--temperature", "0"]
    env = os.environ | {"XDG_STATE_HOME": str(tmp_path), "TERM": "xterm"}
    with pexpect.spawn(sys.executable, command, env=env, encoding="utf-8", timeout=120, echo=False) as child:
        child.expect_exact("> ")
        yield child
        child.sendeof()
        child.expect(pexpect.EOF)
    assert child.exitstatus == 0


@pytest.mark.model
def test_ctrl_c_stops_a_reply_and_keeps_the_chat(chat):
    chat.sendline("Write a very long story about the sea, with many chapters.")
    chat.expect("[A-Z]\\w+ \\w+ \\w+")
    chat.sendintr()
    chat.expect_exact("stopped")
    chat.expect_exact("\n> ")
    chat.sendintr()
    chat.expect_exact("/exit or Ctrl-D leaves")
    chat.expect_exact("\n> ")
    chat.sendline("/reset")
    chat.expect_exact("started again")
    chat.expect_exact("\n> ")
    chat.sendline("What is the capital of France?")
    chat.expect_exact("Paris")
    chat.expect_exact("\n> ")


@pytest.mark.model
def test_lines_are_remembered(chat, tmp_path):
    chat.sendline("/nonsense")
    chat.expect_exact("no command /nonsense")
    chat.expect_exact("\n> ")
    chat.sendline("/exit")
    chat.expect(pexpect.EOF)
    assert "/nonsense" in (tmp_path / "trivet" / "chat_history").read_text("utf-8")
