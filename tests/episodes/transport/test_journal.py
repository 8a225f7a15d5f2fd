"""The journal of a receiver: what it keeps, and what it makes of damaged files."""

from __future__ import annotations

import warnings
from pathlib import Path

import pytest

from episodes.errors import InvalidArgument, UnreadableData
from episodes.transport import journal as journals
from episodes.transport.journal import Journal, Progress


def written(path: Path) -> bytes:
    """Write the progress of three senders: one has both records, the others one, or one and many writes."""
    journal = Journal(path)
    journal.note(b"sender a", 1, 0)
    journal.note(b"sender a", 2, 1)
    journal.note(b"sender b", 7, 7)
    for number in range(1, 6):
        journal.note(b"sender c", number, number - 1)
    journal.close()
    return path.read_bytes()


def test_journal_restores_progress_and_counts_lost_once(tmp_path: Path) -> None:
    written(tmp_path / "journal")
    for num_in_use in (2, 0, 0):
        journal = Journal(tmp_path / "journal")
        places = [journal.progress_of(sender) for sender in (b"sender a", b"sender b", b"sender c", b"sender d")]
        assert places == [Progress(2, 2), Progress(7, 7), Progress(5, 5), None]
        assert journal.num_in_use == num_in_use
        journal.close()
        journal.close()


def test_journal_with_any_flipped_bit_warns_or_raises(tmp_path: Path) -> None:
    path = tmp_path / "journal"
    sound = written(path)
    end = journals._FIRST + 3 * journals._SLOT_SIZE
    for place in [*range(journals._FIRST), *range(journals._FIRST, end)]:
        damaged = bytearray(sound)
        damaged[place] ^= 1 << place % 8
        path.write_bytes(damaged)
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            try:
                Journal(path).close()
            except UnreadableData as error:
                messages = [str(error)]
            else:
                messages = [str(warning.message) for warning in caught]
        assert messages, place
        assert str(path) in messages[0]


def test_journal_with_a_partial_record_keeps_the_previous(tmp_path: Path) -> None:
    path = tmp_path / "journal"
    journal = Journal(path)
    journal.note(b"sender a", 1, 1)
    before = path.read_bytes()
    journal.note(b"sender a", 2, 1)
    journal.close()
    after = path.read_bytes()
    changed = [place for place, (old, new) in enumerate(zip(before, after, strict=True)) if old != new]
    path.write_bytes(after[: changed[-1]] + before[changed[-1] :])
    with pytest.warns(RuntimeWarning, match="may come twice"):
        journal = Journal(path)
    assert journal.progress_of(b"sender a") == Progress(1, 1)
    journal.close()


def test_journal_without_free_slots_drops_the_oldest_sender(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(journals, "_SLOTS", 2)
    monkeypatch.setattr(journals, "_SIZE", journals._FIRST + 2 * journals._SLOT_SIZE)
    journal = Journal(tmp_path / "journal")
    for number, sender in enumerate([b"sender a", b"sender b", b"sender c"]):
        journal.note(sender, number + 1, number + 1)
    journal.close()
    reopened = Journal(tmp_path / "journal")
    assert [reopened.progress_of(sender) for sender in (b"sender a", b"sender b", b"sender c")] == [
        None,
        (2, 2),
        (3, 3),
    ]
    reopened.close()


@pytest.mark.parametrize("content", [b"something else that is long enough", bytes(100), journals._MAGIC])
def test_journal_at_another_file_raises(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "journal"
    path.write_bytes(content)
    with pytest.raises(UnreadableData, match="not a journal"):
        Journal(path)
    assert path.read_bytes() == content


def test_journal_in_use_raises(tmp_path: Path) -> None:
    journal = Journal(tmp_path / "journal")
    with pytest.raises(InvalidArgument, match="another receiver"):
        Journal(tmp_path / "journal")
    journal.close()
