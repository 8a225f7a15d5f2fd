"""Read samples from the responses of model servers, and from the records of gateways."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from episodes.errors import EpisodeError, InvalidArgument, ShapeMismatch, WrongType
from episodes.tokens.names import CHOICE

__all__ = ["ResponseReader", "Sample", "read_record", "read_response", "read_stream"]

_DAMAGES = (AttributeError, LookupError, TypeError)  # of fields that have another form than documented
_ADVICE = "ask a vLLM or SGLang server for them with return_token_ids=True"
_RECORDS = {  # names of prompt ids, sampled ids and log-probabilities
    "rLLM's model gateway": ("prompt_token_ids", "completion_token_ids", "logprobs"),
    "NeMo Gym": ("prompt_token_ids", "generation_token_ids", "generation_log_probs"),
    "verifiers": ("prompt_ids", "completion_ids", "completion_logprobs"),
    "TRL": ("prompt_ids", "completion_ids", "logprobs"),
}


@dataclass(frozen=True)
class Sample:
    """One sample of a model with its prompt, as read from a response. `Session.add(**sample.as_call())` records it.

    Attributes:
        prompt_ids: token ids of the whole prompt, [L].
        ids: sampled token ids, [K].
        logp: log-probabilities of the sampled tokens, [K], or None if the response has none.
        response_id: id that the server gave the response, or None.
        finish_reason: why the sample ended, such as "stop" or "length", or None if it did not.
        choice: index of the sample among the choices of its response.
        versions: policy version of each sampled token, [K], or None if `ResponseReader.read` was given none.
    """

    prompt_ids: Sequence[int]
    ids: Sequence[int]
    logp: Sequence[float] | None
    response_id: str | None = None
    finish_reason: str | None = None
    choice: int = 0
    versions: Sequence[int] | None = None

    def as_call(self) -> dict[str, Any]:
        """Return the sample as keyword arguments of `Session.add`, without versions. The index of a choice after the
        first is stored in infos as "choice".
        """
        call: dict[str, Any] = {"prompt_ids": self.prompt_ids, "ids": self.ids}
        if self.logp is not None:
            call["logp"] = self.logp
        if self.choice:
            call["infos"] = {CHOICE: self.choice}
        return {**call, "response_id": self.response_id, "finish_reason": self.finish_reason}


class _Choice:
    """Tokens of one choice of a response that have arrived."""

    __slots__ = ("finish_reason", "has_ids", "has_logp", "ids", "logp", "num_paired", "prompt_ids", "versions")

    def __init__(self) -> None:
        self.prompt_ids: Sequence[int] | None = None
        self.ids: list[int] = []
        self.logp: list[float] = []
        self.versions: list[int] = []
        self.finish_reason: str | None = None
        self.has_ids = self.has_logp = False
        self.num_paired = 0  # tokens until ids and log-probabilities last had equal numbers


class ResponseReader:
    """Reader of one response of a server, whole or chunk by chunk.

    It reads what vLLM and SGLang return for chat completions and completions, also through litellm. Chunks of a stream
    have the tokens that are new since the chunk before.

    >>> reader = ResponseReader()
    >>> reader.read({"id": "r", "prompt_token_ids": [1, 2], "choices": [{"index": 0, "delta": {"content": ""}}]})
    >>> reader.read({"choices": [{"index": 0, "token_ids": [3], "logprobs": {"content": [{"logprob": -0.5}]},
    ...     "finish_reason": "stop"}]})
    >>> reader.samples()
    [Sample(prompt_ids=[1, 2], ids=[3], logp=[-0.5], response_id='r', finish_reason='stop', choice=0, versions=None)]
    """

    def __init__(self) -> None:
        self.response_id: str | None = None
        self._prompt_ids: Sequence[int] | None = None
        self._choices: dict[int, _Choice] = {}
        self._num_sampled: int | None = None  # as the server counts them

    @property
    def is_finished(self) -> bool:
        """Whether there are choices, and each has a finish reason."""
        return bool(self._choices) and all(choice.finish_reason for choice in self._choices.values())

    def read(self, payload: Mapping[str, Any], version: int | None = None) -> None:
        """Read a response or a chunk.

        Args:
            payload: the decoded JSON object.
            version: version of the policy that sampled its tokens, or None.

        Raises:
            WrongType: the payload or one of its choices is not a dict, or a field has another type than documented.
            InvalidArgument: two choices have one index, or a choice gets tokens after its finish reason.
        """
        _check_dict(payload, "read: payload")
        try:
            self._read(payload, version)
        except EpisodeError:
            raise
        except _DAMAGES as error:
            raise WrongType(
                f"{self._label(None)}: a field has another form than vLLM and SGLang document ({error!r}); read one of "
                "their responses"
            ) from error

    def _read(self, payload: Mapping[str, Any], version: int | None) -> None:
        self.response_id = payload.get("id") or self.response_id
        prompt_ids = payload.get("prompt_token_ids")
        if prompt_ids is not None:
            self._prompt_ids = prompt_ids
        usage = payload.get("usage")
        if usage and usage.get("completion_tokens"):  # some gateways report 0 for streams
            self._num_sampled = usage["completion_tokens"]
        choices = payload.get("choices") or ()
        for position, fields in enumerate(choices):
            if type(fields) is not dict:
                _check_dict(fields, f"read: choices[{position}]")
            index = fields.get("index", position)
            if type(index) is not int:
                raise WrongType(f"{self._label(None)}: a choice has index {index!r}; give an int")
            if position and index in [other.get("index") for other in choices[:position]]:
                raise InvalidArgument(f"{self._label(None)}: two choices have index {index}; give each its own")
            choice = self._choices.get(index)
            if choice is None:
                choice = self._choices[index] = _Choice()
            self._read_choice(index, choice, fields, version)

    def _read_choice(self, index: int, choice: _Choice, fields: Mapping[str, Any], version: int | None) -> None:
        more = fields.get("provider_specific_fields") or {}  # where litellm puts fields that OpenAI does not have
        meta = fields.get("meta_info") or more.get("meta_info") or {}
        for source in (fields, more):
            if source.get("prompt_token_ids") is not None:
                choice.prompt_ids = source["prompt_token_ids"]
        ids = fields.get("token_ids", more.get("token_ids"))
        logp = _logp_of(fields.get("logprobs"))
        if meta.get("output_token_logprobs") is not None:
            entries = meta["output_token_logprobs"]
            sampled = [entry[1] for entry in entries]
            if ids is not None and list(ids) != sampled:
                raise ShapeMismatch(
                    f"{self._label(index)}: token_ids and meta_info.output_token_logprobs have other tokens; read "
                    "one of them"
                )
            ids, logp = sampled, [entry[0] for entry in entries]
        if ids and choice.finish_reason:
            raise InvalidArgument(f"{self._label(index)}: {len(ids)} token ids after its end; read each chunk once")
        if ids is not None:
            choice.has_ids = True
            choice.ids.extend(ids)
            if version is not None:
                choice.versions.extend([version] * len(ids))
        if logp is not None:
            choice.has_logp = True
            choice.logp.extend(logp)
        if len(choice.ids) == len(choice.logp):
            choice.num_paired = len(choice.ids)
        reason = fields.get("finish_reason")
        if reason:
            choice.finish_reason = reason["type"] if isinstance(reason, Mapping) else str(reason)

    def samples(self, prompt_ids: Sequence[int] | None = None) -> list[Sample]:
        """Return the samples of the response, one for each choice.

        Args:
            prompt_ids: token ids of the prompt, if the response does not have them.

        Raises:
            InvalidArgument: token ids are missing, or the response has fewer or more than the server counted.
            ShapeMismatch: a sample has another number of log-probabilities than of tokens.
        """
        samples = [self._sample(index, prompt_ids) for index in sorted(self._choices)]
        num = sum(len(sample.ids) for sample in samples)
        if self.is_finished and self._num_sampled is not None and num != self._num_sampled:
            raise InvalidArgument(
                f"{self._label(None)}: {num} sampled token ids, and the server counted {self._num_sampled} tokens; "
                "some servers with a tool parser drop ids of streams, so update the server, or ask for whole answers"
            )
        return samples

    def partial_samples(self) -> list[Sample]:
        """Return what has arrived of a response that was interrupted, as samples without a finish reason.

        Tokens from the first chunk on that has more or fewer log-probabilities than tokens are left out, and so are
        choices without a prompt or tokens.
        """
        samples = []
        for index, choice in sorted(self._choices.items()):
            prompt_ids = self._prompt_ids if choice.prompt_ids is None else choice.prompt_ids
            num = choice.num_paired if choice.has_logp else len(choice.ids)
            if prompt_ids and num:
                logp = choice.logp[:num] if choice.has_logp else None
                versions = choice.versions[:num] or None
                samples.append(Sample(prompt_ids, choice.ids[:num], logp, self.response_id, None, index, versions))
        return samples

    def _sample(self, index: int, prompt_ids: Sequence[int] | None) -> Sample:
        choice = self._choices[index]
        known = self._prompt_ids if choice.prompt_ids is None else choice.prompt_ids
        prompt_ids = known if known is not None else prompt_ids
        missing = "prompt_token_ids" if prompt_ids is None else None if choice.has_ids else "token_ids"
        if prompt_ids is None or missing:
            raise InvalidArgument(f"{self._label(index)}: it has no {missing}; {_ADVICE}")
        logp = choice.logp if choice.has_logp else None
        _check_lengths(choice.ids, logp, self._label(index))
        return Sample(
            prompt_ids, choice.ids, logp, self.response_id, choice.finish_reason, index, choice.versions or None
        )

    def _label(self, index: int | None) -> str:
        name = "response" if self.response_id is None else f"response {self.response_id}"
        return f"{name}, choice {index}" if index else name


def read_response(
    payload: Mapping[str, Any] | list[Mapping[str, Any]], prompt_ids: Sequence[int] | None = None
) -> list[Sample]:
    """Return the samples of a whole response, one for each choice.

    Args:
        payload: the decoded JSON of a chat completion or completion of vLLM or SGLang, also as litellm returns it
            (`response.model_dump()`), or of SGLang's `/generate`.
        prompt_ids: token ids of the prompt, for responses without them. `/generate` does not return them.

    Raises:
        WrongType: the payload is not a dict (for `/generate` also a list of dicts).
        InvalidArgument: token ids are missing, or the response has fewer or more than the server counted.
        ShapeMismatch: a sample has another number of log-probabilities than of tokens.

    >>> read_response({"prompt_token_ids": [1], "choices": [{"token_ids": [7], "finish_reason": "stop"}]})[0].ids
    [7]
    """
    reader = ResponseReader()
    if isinstance(payload, list) or (isinstance(payload, Mapping) and "meta_info" in payload):
        payload = _of_generate(payload if isinstance(payload, list) else [payload])
    reader.read(payload)
    if not payload.get("choices"):
        raise InvalidArgument(f"read_response: no choices in the payload with keys {_keys(payload)}; give a response")
    return reader.samples(prompt_ids)


def read_stream(chunks: Iterable[Mapping[str, Any]]) -> list[Sample]:
    """Return the samples of a streamed response, one for each choice, given all chunks as decoded JSON.

    A stream that ends before its choices have finished gives samples with `finish_reason` None.

    Raises:
        WrongType, InvalidArgument, ShapeMismatch: see `read_response`.
    """
    reader = ResponseReader()
    for chunk in chunks:
        reader.read(chunk)
    return reader.samples()


def read_record(record: Mapping[str, Any]) -> list[Sample]:
    """Return the samples of one call as a gateway or trainer records it.

    These forms are known:

    - a response of a server, see `read_response`, also under the key "response" (logs of litellm) or "output".
    - rLLM's model gateway: `prompt_token_ids`, `completion_token_ids`, `logprobs`.
    - NeMo Gym: `prompt_token_ids`, `generation_token_ids`, `generation_log_probs`.
    - verifiers: `prompt_ids`, `completion_ids`, `completion_logprobs`, also under the key "tokens".
    - rows of TRL's rollouts: `prompt_ids`, `completion_ids`, `logprobs`.

    Raises:
        WrongType: the record is not a dict.
        InvalidArgument: it has another form, or a `completion_mask` with zeros, so that not all its tokens were
            sampled in one call.
        ShapeMismatch: it has another number of log-probabilities than of tokens.

    >>> read_record({"prompt_ids": [1, 2], "completion_ids": [3], "completion_logprobs": [-0.1]})[0].logp
    [-0.1]
    """
    _check_dict(record, "read_record: record")
    try:
        return _samples_of_record(record)
    except EpisodeError:
        raise
    except _DAMAGES as error:
        raise WrongType(
            f"read_record: a field of the record with keys {_keys(record)} has another form than documented ({error!r})"
        ) from error


def _samples_of_record(record: Mapping[str, Any]) -> list[Sample]:
    tokens = record.get("tokens")
    fields = {**record, **tokens} if isinstance(tokens, Mapping) else record
    for names in _RECORDS.values():
        prompt_ids, ids, logp = (fields.get(name) for name in names)
        if prompt_ids is not None and ids is not None and (logp is not None or not _has_other_logp(fields, names)):
            return [_sample_of_record(fields, prompt_ids, ids, _logp_of(logp))]
    for source in (record, record.get("response"), record.get("output")):
        if isinstance(source, Mapping) and ("choices" in source or "meta_info" in source):
            return read_response(source)
    forms = "; ".join(f"{owner} with {', '.join(names)}" for owner, names in _RECORDS.items())
    raise InvalidArgument(f"read_record: a record with keys {_keys(fields)}; give a response of a server, or {forms}")


def _sample_of_record(
    fields: Mapping[str, Any], prompt_ids: Sequence[int], ids: Sequence[int], logp: Sequence[float] | None
) -> Sample:
    id_ = next((fields[name] for name in ("response_id", "id", "trace_id", "request_id") if fields.get(name)), None)
    label = "read_record" if id_ is None else f"read_record: record {id_}"
    mask = fields.get("completion_mask")
    if mask is not None and (len(mask) != len(ids) or not all(mask)):
        raise InvalidArgument(
            f"{label}: completion_mask has zeros, or another length than the {len(ids)} ids; give one record for each "
            "call of the model"
        )
    _check_lengths(ids, logp, label)
    reason = fields.get("finish_reason")
    return Sample(prompt_ids, ids, logp, None if id_ is None else str(id_), None if reason is None else str(reason))


def _has_other_logp(fields: Mapping[str, Any], names: tuple[str, str, str]) -> bool:
    """Return True if log-probabilities are stored under a name of another form with the same ids."""
    return any(fields.get(other[2]) is not None for other in _RECORDS.values() if other[:2] == names[:2])


def _of_generate(outputs: Sequence[Any]) -> dict[str, Any]:
    """Return outputs of SGLang's `/generate` as one response with choices."""
    choices, id_ = [], None
    for index, output in enumerate(outputs):
        _check_dict(output, f"read_response: payload[{index}]")
        meta = output.get("meta_info") or {}
        _check_dict(meta, f"read_response: payload[{index}]['meta_info']")
        id_ = id_ or meta.get("id")
        ids = {} if output.get("output_ids") is None else {"token_ids": output["output_ids"]}
        choices.append({"index": index, "finish_reason": meta.get("finish_reason"), "meta_info": meta, **ids})
    return {"id": id_, "choices": choices}


def _logp_of(logprobs: Mapping[str, Any] | Sequence[float] | None) -> Sequence[float] | None:
    """Return log-probabilities [K] of `logprobs` of a chat completion, a completion or a record, or None."""
    if isinstance(logprobs, Mapping):
        if logprobs.get("content") is not None:
            return [entry["logprob"] for entry in logprobs["content"]]
        return logprobs.get("token_logprobs")
    return logprobs


def _check_lengths(ids: Sequence[int], logp: Sequence[float] | None, label: str) -> None:
    if logp is not None and len(logp) != len(ids):
        raise ShapeMismatch(
            f"{label}: {len(logp)} log-probabilities for {len(ids)} sampled token ids; give one for each, as a server "
            "with return_token_ids and logprobs returns them"
        )


def _check_dict(value: object, label: str) -> None:
    if not isinstance(value, Mapping):
        raise WrongType(f"{label} is a {type(value).__name__}; give the decoded JSON object, a dict")


def _keys(fields: Mapping[str, Any]) -> list[str]:
    return sorted(map(str, fields))[:12]
