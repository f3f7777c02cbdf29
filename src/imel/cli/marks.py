"""Text that a command writes into a page, between two marks that stay where they are."""

from __future__ import annotations

from pathlib import Path

from imel.errors import SettingsError


def around_marks(page: Path, name: str) -> tuple[str, str]:
    """The page up to and with the first mark of this name, and from the second."""
    begin, end = f"<!-- {name}: begin -->", f"<!-- {name}: end -->"
    before, found_begin, rest = page.read_text(encoding="utf-8").partition(begin)
    _, found_end, after = rest.partition(end)
    if not (found_begin and found_end):
        raise SettingsError(f"{page} lacks the lines '{begin}' and '{end}'")
    return f"{before}{begin}\n\n", f"\n{end}{after}"
