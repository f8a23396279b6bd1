"""Answer one prompt and stop."""

from __future__ import annotations

from dataclasses import asdict
from itertools import chain
from typing import TYPE_CHECKING, Annotated

import typer

from trivet.cli.adapters import AdapterOption, scaled
from trivet.cli.output import (
    ContextOption,
    DeviceOption,
    JsonOption,
    KvOption,
    ModelArgument,
    ThreadsOption,
    emit_json,
    note,
    read_stdin,
)
from trivet.cli.progress import waiting

if TYPE_CHECKING:
    from trivet.generate.completion import Completion

EXAMPLE = 'trivet run smollm2-135m "What is the capital of France?" --temperature 0'


def run(
    model: ModelArgument,
    prompt: Annotated[
        str, typer.Argument(metavar="PROMPT", help="The message; - reads it from standard input.")
    ],
    system: Annotated[str | None, typer.Option(help="A system message.")] = None,
    raw: Annotated[
        bool, typer.Option("--raw", help="Continue the text as it is, without the chat template.")
    ] = False,
    max_tokens: Annotated[int, typer.Option(min=1, help="Most tokens of the reply.")] = 512,
    temperature: Annotated[float, typer.Option(min=0, help="0 takes the likeliest token each time.")] = 0.2,
    top_k: Annotated[int, typer.Option(min=0, help="Keep the k likeliest tokens; 0 keeps all.")] = 40,
    top_p: Annotated[
        float, typer.Option(help="Keep the likeliest tokens that reach this probability.")
    ] = 0.95,
    min_p: Annotated[float, typer.Option(help="Drop tokens less likely than this share of the best.")] = 0.05,
    repeat_penalty: Annotated[
        float, typer.Option(help="Above 1, tokens already seen become less likely.")
    ] = 1.0,
    seed: Annotated[int | None, typer.Option(help="The same seed gives the same reply.")] = None,
    stop: Annotated[list[str] | None, typer.Option(help="Stop before this text; may be given again.")] = None,
    device: DeviceOption = "auto",
    threads: ThreadsOption = 0,
    kv: KvOption = None,
    context: ContextOption = None,
    adapter: AdapterOption = None,
    as_json: JsonOption = False,
) -> None:
    from trivet.generate.model import load
    from trivet.generate.sampler import SamplerOptions

    if prompt == "-":
        prompt = read_stdin()
    options = SamplerOptions(temperature, top_k, top_p, min_p, repeat_penalty, seed=seed)
    with waiting("loading"):
        m = load(model, device, context=context, threads=threads, kv=kv, adapter=scaled(adapter))
        _ = m.engine
    if raw or (m.chat_template is None and system is None):
        ids = m.encode_prompt(prompt)
    else:
        opening = [] if system is None else [{"role": "system", "content": system}]
        ids = m.encode_chat([*opening, {"role": "user", "content": prompt}])
    chunks = m.stream_ids(ids, options, max_tokens, stop or ())
    with waiting(f"reading {len(ids)} tokens"):
        first = next(chunks)
    for chunk in chain((first,), chunks):
        if not as_json:
            print(chunk.text, end="", flush=True)
        done = chunk.completion
    assert done is not None
    if as_json:
        rates = {"prefill_rate": done.timings.prefill_rate, "decode_rate": done.timings.decode_rate}
        emit_json({**asdict(done), "timings": {**asdict(done.timings), **rates}})
        return
    print()
    _summary(done)


def _summary(done: Completion) -> None:
    t, u = done.timings, done.usage
    ended = f", stopped at {done.limit}" if done.limit else ""
    note(
        f"{u.prompt_tokens} tokens in at {t.prefill_rate:.0f}/s, "
        f"{u.completion_tokens} out at {t.decode_rate:.1f}/s{ended}"
    )
