"""List the models that were pulled, or came as packages."""

from __future__ import annotations

from trivet.cli.output import JsonOption, emit_json, human_bytes, note, table

EXAMPLE = "trivet list"


def list(as_json: JsonOption = False) -> None:
    from trivet.hub import cache
    from trivet.models.checkpoint import PACKAGED, packaged

    found = [*packaged(), *cache.held()]
    if as_json:
        models = [{"name": m.name, "type": m.kind, "bytes": m.nbytes, "path": str(m.path)} for m in found]
        emit_json({"cache": str(cache.folder()), "models": models})
        return
    if not found:
        note(f"no models in {cache.folder()}; trivet pull OWNER/REPO fetches one")
        return
    rows = [
        (
            m.name,
            m.kind,
            human_bytes(m.nbytes),
            f"package {PACKAGED[m.name][0]}" if m.name in PACKAGED else "cache",
        )
        for m in found
    ]
    table(("name", "type", "size", "where"), rows)
    print(f"\nthe cache is {cache.folder()}")
