"""Model files: bytes on disk ↔ named arrays. Every count, length and offset is checked before use."""
