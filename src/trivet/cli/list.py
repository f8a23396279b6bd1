"""List the models that were pulled, or came as packages."""

from __future__ import annotations

from trivet.cli.output import JsonOption, emit_json, human_bytes, note, table

EXAMPLE = "trivet list"


def list(as_json: JsonOption = False) -> None:
    from trivet.hub import cache
    from trivet.models.checkpoint import packaged

    found = [*packaged(), *cache.held()]
    if as_json:
        models = [{"name": m.name, "type": m.kind, "bytes": m.nbytes, "path": str(m.path)} for m in found]
        emit_json({"cache": str(cache.folder()), "models": models})
        return
    if not found:
        note(f"no models in {cache.folder()}; trivet pull OWNER/REPO fetches one")
        return
    table(
        ("name", "type", "size", "where"),
        [(m.name, m.kind, human_bytes(m.nbytes), str(m.path)) for m in found],
    )
