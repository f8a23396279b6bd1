"""List devices, and why some cannot be used."""

from __future__ import annotations

from trivet.cli.output import JsonOption, emit_json, table

EXAMPLE = "trivet devices"


def devices(as_json: JsonOption = False) -> None:
    from trivet import runtime

    found = runtime.devices()
    if as_json:
        emit_json(
            {"devices": [{"name": d.name, "available": d.available, "details": d.details} for d in found]}
        )
        return
    rows = [(d.name, "yes" if d.available else "no", d.details) for d in found]
    table(("device", "available", "details"), rows)
