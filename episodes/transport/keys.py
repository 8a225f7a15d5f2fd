"""Encryption keys for connections between senders and receivers (ZeroMQ's CURVE):
creating, loading and checking them."""

from __future__ import annotations

import os
import shutil
import struct
from pathlib import Path
from typing import TYPE_CHECKING, Any

from episodes.errors import InvalidArgument, UnreadableData
from episodes.storage.files import local_path
from episodes.transport.sockets import zeromq

if TYPE_CHECKING:
    import zmq

RECEIVER = "receiver"
DOMAIN = "rl-episodes"
"""ZeroMQ's name for the sockets that a guard protects."""


def make_keys(directory: str | os.PathLike[str], *, sender: str = "sender") -> tuple[Path, Path]:
    """Create encryption keys for a receiver and one of its senders, and return the folders in which
    each side's keys are stored.

    Copy each folder to the machine where it is used, and nowhere else. A second call with another `sender` creates keys
    for one more sender of the same receiver.

    Args:
        directory: parent of the folders; it is created if it does not exist.
        sender: name of the sender's folder.

    Returns:
        The receiver's and the sender's folder, for `EpisodeReceiver(keys=)` and `EpisodeSender(keys=)`.

    Raises:
        InvalidArgument: `sender` is not a file name, or has keys already; none are overwritten.
        MissingExtra: pyzmq is not installed.
    """
    auth = _auth()
    root = local_path(directory)
    is_name = isinstance(sender, str) and sender == Path(sender).name and sender != ".." and "\0" not in sender
    if not is_name or not sender or sender == RECEIVER:
        raise InvalidArgument(f"sender={sender!r}; give a file name, other than {RECEIVER!r}")
    receivers, senders = root / RECEIVER, root / sender
    if senders.exists():
        raise InvalidArgument(f"{senders} exists already; give another sender=, or another directory")
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
    """Load the only key pair of a folder, and return its public and its secret key.

    Raises:
        UnreadableData: the folder does not contain exactly one secret key.
    """
    secrets = sorted(local_path(folder).glob("*.key_secret"))
    if len(secrets) != 1:
        raise UnreadableData(f"{folder} has {len(secrets)} secret keys; give a folder that make_keys made")
    return _loaded(secrets[0])


def public_key(folder: str | os.PathLike[str], name: str) -> bytes:
    """Load the public key from the file `<name>.key` in a folder.

    Raises:
        UnreadableData: there is no such file, or it is not a key.
    """
    return _loaded(local_path(folder) / f"{name}.key")[0]


def _auth() -> Any:
    """Import zmq.auth. Raise `MissingExtra` if pyzmq is not installed."""
    zeromq()
    import zmq.auth

    return zmq.auth


def _loaded(file: Path) -> tuple[bytes, bytes]:
    """Load a key file, and return its public and its secret key (None in a public file).
    Raise `UnreadableData` if it is invalid."""
    auth = _auth()
    from zmq.utils import z85

    try:
        pair: Any = auth.load_certificate(file)
        sizes = {len(z85.decode(key)) for key in pair if key is not None}
    except (OSError, ValueError, KeyError, struct.error) as error:
        raise UnreadableData(f"{file} is not a key: {error}; give a folder that make_keys made") from None
    if sizes != {32}:
        raise UnreadableData(f"{file} is not a key; give a folder that make_keys made")
    return pair


def start_guard(context: zmq.Context[zmq.Socket[bytes]], folder: str | os.PathLike[str]) -> Any:
    """Start a thread that rejects connections of senders whose public key is not in `folder`, and return the thread.

    The thread has a `stop` method.

    Raises:
        UnreadableData: a file of the folder is not a key, or cannot be read.
    """
    from zmq.auth.thread import ThreadAuthenticator

    for file in sorted(local_path(folder).glob("*.key")):
        _loaded(file)
    guard = ThreadAuthenticator(context)
    guard.start()
    try:
        guard.configure_curve(domain=DOMAIN, location=folder)
    except BaseException:
        guard.stop()
        raise
    return guard
