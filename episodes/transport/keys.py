"""Keys of ZeroMQ's CURVE: who has none of them can neither send to a receiver nor read what is sent."""

from __future__ import annotations

import os
import shutil
from pathlib import Path
from typing import Any

from episodes.errors import InvalidArgument, UnreadableData
from episodes.transport.sockets import zeromq

RECEIVER = "receiver"


def make_keys(directory: str | os.PathLike[str], *, sender: str = "sender") -> tuple[Path, Path]:
    """The folders of keys for a receiver and for a sender, made in `directory`; readable for their owner alone.

    Copy each to where it is used, and nowhere else. Called again with another `sender`, it makes keys for one more
    that the same receiver lets in.

    Raises:
        InvalidArgument: that sender has keys already; none are written over.
        MissingExtra: without pyzmq.
    """
    auth = _auth()
    root = Path(directory)
    if sender == RECEIVER or not sender or Path(sender).name != sender:
        raise InvalidArgument(f"sender={sender!r}; give a name of a file, other than {RECEIVER!r}")
    receivers, senders = root / RECEIVER, root / sender
    if senders.exists():
        raise InvalidArgument(f"{senders} is there already; give another sender=, or another directory")
    before = os.umask(0o077)
    try:
        if not receivers.exists():
            receivers.mkdir(parents=True)
            auth.create_certificates(receivers, RECEIVER)
        senders.mkdir()
        auth.create_certificates(senders, sender)
        shutil.copyfile(senders / f"{sender}.key", receivers / f"{sender}.key")
        shutil.copyfile(receivers / f"{RECEIVER}.key", senders / f"{RECEIVER}.key")
    finally:
        os.umask(before)
    return receivers, senders


def own_pair(folder: str | os.PathLike[str]) -> tuple[bytes, bytes]:
    """The public and the secret key in a folder of keys. `UnreadableData` where there is not one pair."""
    secrets = sorted(Path(folder).glob("*.key_secret"))
    if len(secrets) != 1:
        raise UnreadableData(f"{folder} has {len(secrets)} secret keys; give a folder that make_keys made")
    return _loaded(secrets[0])


def public_key(folder: str | os.PathLike[str], name: str) -> bytes:
    """The public key of a name in a folder of keys."""
    return _loaded(Path(folder) / f"{name}.key")[0]


def _auth() -> Any:
    zeromq()
    import zmq.auth

    return zmq.auth


def _loaded(file: Path) -> Any:
    try:
        return _auth().load_certificate(file)
    except (OSError, ValueError) as error:
        raise UnreadableData(f"{file} is no key: {error}; give a folder that make_keys made") from None


class Guard:
    """A thread that lets in whose keys are in a folder, and nobody else."""

    def __init__(self, context: Any, folder: str | os.PathLike[str]) -> None:
        from zmq.auth.thread import ThreadAuthenticator

        self._authenticator = ThreadAuthenticator(context)
        self._authenticator.start()
        self._authenticator.configure_curve(domain="*", location=folder)

    def stop(self) -> None:
        self._authenticator.stop()
